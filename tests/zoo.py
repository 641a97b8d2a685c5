"""Small models that the tests share, by how they are made."""

import keras
import numpy as np

layers = keras.layers


class Centre(layers.Layer):
    """Subtracts the mean over the batch, so it mixes the samples."""

    def build(self, shape):
        self.scale = self.add_weight((shape[-1],), "ones")

    def call(self, x):
        return self.scale * (x - keras.ops.mean(x, 0, keepdims=True))


class TiedLogits(layers.Layer):
    """Logits by the table that embedded the words."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        table = keras.ops.transpose(self.table.embeddings)
        return keras.ops.matmul(x, table)


def functional(cls):
    """Conv, GroupNormalization (no rule needed), Dropout, regularisers."""
    inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(3, 3, activation="relu", kernel_regularizer="l2")(inputs)
    # One group: with one a channel the bias before it would have a gradient
    # of pure rounding noise, which Adam turns into whole steps.
    x = layers.GroupNormalization(1)(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(0.3)(x)
    x = layers.Dense(5, activation="relu", activity_regularizer="l2")(x)
    return cls(inputs, layers.Dense(3, activation="softmax")(x))


def subclassed(cls):
    """Built late; a weight of its own is used in `call`."""

    class Net(cls):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(6, activation="tanh")
            self.out = layers.Dense(3, activation="softmax")

        def build(self, shape):
            self.shift = self.add_weight(shape=(6,), name="shift")

        def call(self, x):
            x = self.hidden(keras.ops.reshape(x, (-1, 36)))
            return self.out(x + self.shift)

    return Net()


def sequential(cls):
    """A Sequential; for our class made with from_model."""
    net = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Flatten(),
            layers.Dense(5, activation="elu"),
            layers.LayerNormalization(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    return net if cls is keras.Model else cls.from_model(net)


MAKERS = {m.__name__: m for m in (functional, subclassed, sequential)}


def data(n=19):
    """Images, labels and sample weights (with a zero)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6, 6, 1)).astype("float32")
    weights = rng.uniform(size=n).astype("float32")
    weights[0] = 0
    return x, np.arange(n) % 3, weights
