"""Small models of every kind, and the benchmark models, with a batch each."""

import keras
import numpy as np
from keras import layers

from tests.models.making import compiled, net, normal

BATCH = 8


class SelfAttention(layers.Layer):
    """Attention of a sequence with itself, for use in `Sequential`."""

    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x)


class TransformerBlock(layers.Layer):
    """Attention and a feed-forward part, each added and normalised."""

    def __init__(self, heads, width, hidden):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.feed = [layers.Dense(hidden, "relu"), layers.Dense(width)]
        self.norms = [layers.LayerNormalization() for _ in range(2)]

    def build(self, shape):
        self.attention.build(shape, shape)
        first, second = self.feed
        first.build(shape)
        second.build((*shape[:-1], first.units))
        for norm in self.norms:
            norm.build(shape)

    def call(self, x):
        x = self.norms[0](x + self.attention(x, x))
        return self.norms[1](x + self.feed[1](self.feed[0](x)))


def _dense():
    return (4,), [layers.Dense(5, activation="relu"), layers.Dense(3)]


def _cnn():
    return (12, 12, 2), [
        layers.Conv2D(4, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(2),
        layers.Conv2D(4, 3, strides=2),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(3),
    ]


def _rnn():
    return (7, 4), [layers.LSTM(5, use_cudnn=False), layers.Dense(3)]


def _embedding():
    return (6,), [
        layers.Embedding(20, 4),
        layers.GlobalAveragePooling1D(),
        layers.Dense(3),
    ]


def _attention():
    return (6,), [
        layers.Embedding(20, 8),
        SelfAttention(),
        layers.LayerNormalization(),
        layers.GlobalAveragePooling1D(),
        layers.Dense(3),
    ]


SMALL = {
    "dense": _dense,
    "cnn": _cnn,
    "rnn": _rnn,
    "embedding": _embedding,
    "attention": _attention,
}


def _logreg():
    return (104,), [layers.Dense(1)]


def _ffnn():
    return (104,), [layers.Dense(50, activation="relu"), layers.Dense(2)]


def _mnist():
    return (28, 28, 1), [
        layers.Conv2D(16, 8, strides=2, padding="same", activation="relu"),
        layers.MaxPooling2D(2, 1),
        layers.Conv2D(32, 4, strides=2, activation="relu"),
        layers.MaxPooling2D(2, 1),
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(10),
    ]


def _cifar10():
    stack = []
    for width in (32, 64, 128):
        for _ in range(2):
            conv = layers.Conv2D(width, 3, padding="same", activation="relu")
            stack.append(conv)
        stack.append(layers.AveragePooling2D(2))
    stack.append(layers.Conv2D(256, 3, padding="same", activation="relu"))
    stack.append(layers.Conv2D(10, 3, padding="same"))
    return (32, 32, 3), [*stack, layers.GlobalAveragePooling2D()]


def _embed():
    return (256,), [
        layers.Embedding(10004, 16),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    ]


def _lstm_text(positions=256):
    return (positions,), [
        layers.Embedding(10004, 100),
        layers.LSTM(100, return_sequences=True, use_cudnn=False),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    ]


def _transformer():
    return (64,), [
        layers.Embedding(5000, 128),
        TransformerBlock(4, 128, 512),
        TransformerBlock(4, 128, 512),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    ]


BENCHMARKS = {
    "logreg": _logreg,
    "ffnn": _ffnn,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "embed": _embed,
    "lstm": _lstm_text,
    "transformer": _transformer,
}


def stack(*parts, shape=(4,), units=1, **settings):
    """A compiled model with these layers, and a batch for it."""
    model = net(*parts, shape=shape, units=units)
    compiled(model, **{"jit_compile": False, **settings})
    y = np.ones((BATCH, *model.output_shape[1:]), "float32")
    return model, normal(BATCH, *shape), y


def make(name, optimizer="adam", batch=BATCH, *, wrap=None, **compile_options):
    """A compiled model of fixed weights and one batch for it.

    Args:
        name: a key of `SMALL` or `BENCHMARKS`.
        optimizer: what `compile` takes.
        batch: the number of samples.
        wrap: a function from `(inputs, outputs)` to a model.
        **compile_options: for `compile`.

    Returns:
        `(model, x, y)`.
    """
    keras.utils.set_random_seed(0)
    shape, stack = {**SMALL, **BENCHMARKS}[name]()
    ids = isinstance(stack[0], layers.Embedding)
    inputs = keras.Input(shape, dtype="int32" if ids else "float32")
    outputs = inputs
    for layer in stack:
        outputs = layer(outputs)
    model = (wrap or keras.Model)(inputs, outputs)
    classes = outputs.shape[-1]
    if classes == 1:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compile_options.setdefault("jit_compile", False)
    model.compile(optimizer, loss, **compile_options)
    random = np.random.default_rng(1)
    if ids:
        x = random.integers(0, 20, (batch, *shape)).astype("int32")
    else:
        x = random.normal(size=(batch, *shape)).astype("float32")
    y = random.integers(0, max(classes, 2), (batch,)).astype("int32")
    return model, x, y[:, None].astype("float32") if classes == 1 else y
