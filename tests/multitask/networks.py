"""Small networks: (inputs, outputs), with data."""

import keras
import numpy as np
import pytest

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


def bert():
    hub = pytest.importorskip("keras_hub").models
    backbone = hub.BertBackbone(20, 1, 2, 8, 8, dropout=0.0)
    return backbone.input, layers.Dense(2)(backbone.output["pooled_output"])


def data(inputs, outputs, n=N, *, seed=0):
    """Data of the shapes of tensors; 5 is the length where there is none."""
    rng = np.random.default_rng(seed)

    def of(tensor):
        shape = [n, *(size or 5 for size in tensor.shape[1:])]
        if "int" in tensor.dtype:
            # Of BERT: two segments, and a mask that hides nothing.
            low, high = {"segment_ids": (0, 2), "padding_mask": (1, 2)}.get(
                tensor.name, (0, 7)
            )
            return rng.integers(low, high, shape).astype("int32")
        return rng.normal(size=shape)

    x = keras.tree.map_structure(of, inputs)
    return x, 3 * rng.normal(size=(n, *outputs.shape[1:]))
