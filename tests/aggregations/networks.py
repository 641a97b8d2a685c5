"""Small networks: (inputs, outputs), with data."""

import keras
import numpy as np

import keras_pergrad as kpg
from tests import zoo

layers = keras.layers
N = 6


def dense():
    x = keras.Input((5,))
    hidden = layers.Dense(4, activation="tanh")(x)
    return x, layers.Dense(3)(layers.LayerNormalization()(hidden))


def lstm():
    x = keras.Input((4, 3))
    return x, layers.Dense(2)(layers.LSTM(3)(x))


def convolution():
    x = keras.Input((6, 6, 2))
    h = layers.Conv2D(3, 3, activation="tanh")(x)
    h = layers.Conv2D(4, 2, strides=2)(h)
    return x, layers.Dense(2)(layers.Flatten()(h))


def tied():
    words = keras.Input((5,), dtype="int32")
    table = layers.Embedding(7, 4)
    x = layers.Dense(4, activation="tanh")(table(words) + table(6 - words))
    return words, zoo.TiedLogits(table)(x)


NETWORKS = {
    "dense": dense,
    "lstm": lstm,
    "convolution": convolution,
    "tied": tied,
}


def data(inputs, outputs, n=N, seed=0):
    rng = np.random.default_rng(seed)
    shape = n, *inputs.shape[1:]
    if "int" in inputs.dtype:
        x = rng.integers(0, 7, shape).astype("int32")
    else:
        x = rng.normal(size=shape)
    return x, 3 * rng.normal(size=(n, *outputs.shape[1:]))


def compiled(mode, **arguments):
    """Return a model with a kernel of several positions, and biases."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4, 6))
    x = layers.Conv1D(3, 2, activation="tanh")(inputs)
    x = layers.GlobalAveragePooling1D()(x)
    model = kpg.PerGradModel(inputs, layers.Dense(3)(x))
    model.compile(
        keras.optimizers.SGD(1.0), "mse", gradient_mode=mode, **arguments
    )
    return model
