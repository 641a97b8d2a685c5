"""Small networks: (inputs, outputs), with data."""

import keras
import numpy as np

layers = keras.layers
N = 6


class TiedLogits(layers.Layer):
    """Logits by the table that embedded the words."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        table = keras.ops.transpose(self.table.embeddings)
        return keras.ops.matmul(x, table)


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
    return words, TiedLogits(table)(x)


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
