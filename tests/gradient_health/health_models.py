"""Small models with a batch, for the instruments of gradient health."""

import keras
import numpy as np

layers = keras.layers
N = 5


def _numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=(N, *shape))


def _classes(count, *shape):
    return np.random.default_rng(1).integers(0, count, size=(N, *shape))


def _compiled(model, loss, **options):
    options = {"jit_compile": False, **options}
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model


def mlp(**options):
    """Two units of the first layer are dead."""
    hidden = layers.Dense(6, activation="relu")
    model = keras.Sequential([keras.Input((4,)), hidden, layers.Dense(3)])
    hidden.bias.assign([0, 0, 0, -100, 0, -100])
    return _compiled(model, "mse", **options), _numbers(4), _numbers(3, seed=2)


def weighted():
    model, x, y = mlp()
    weights = np.array([0.0, 2.0, 1.0, 0.5, 3.0])
    return model, x, y, weights


def cnn():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, activation="relu"),
            layers.Conv2D(4, 2, strides=2, use_bias=False, activation="tanh"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model = _compiled(model, "sparse_categorical_crossentropy")
    return model, _numbers(6, 6, 2), _classes(3)


def lstm():
    """Each position has a loss, the padded ones are masked."""
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(7, 3, mask_zero=True),
            layers.LSTM(4, return_sequences=True),
            layers.Dense(2),
        ]
    )
    x = _classes(6, 4) + 1
    x[1, 2:] = x[3, 1:] = 0
    return _compiled(model, "mse"), x, _numbers(4, 2, seed=3)


def transformer():
    inputs = keras.Input((4,), dtype="int32")
    x = layers.Embedding(7, 4)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(4, activation="gelu")(x))
    outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = _compiled(keras.Model(inputs, outputs), loss)
    return model, _classes(7, 4), _classes(3)


def shared():
    inputs, layer = keras.Input((4,)), layers.Dense(4, activation="tanh")
    model = keras.Model(inputs, layers.Dense(2)(layer(layer(inputs))))
    return _compiled(model, "mae"), _numbers(4), _numbers(2, seed=2)


def several():
    """Two outputs, a frozen layer, a regulariser."""
    inputs = keras.Input((4,))
    x = layers.Dense(5, activation="tanh", trainable=False)(inputs)
    one = layers.Dense(2, kernel_regularizer="l2")(x)
    outputs = [one, layers.Dense(1)(x)]
    model = _compiled(
        keras.Model(inputs, outputs), ["mse", "mae"], loss_weights=[2.0, 0.5]
    )
    return model, _numbers(4), [_numbers(2, seed=2), _numbers(1, seed=3)]


CASES = {
    case.__name__: case
    for case in (mlp, weighted, cnn, lstm, transformer, shared, several)
}
