"""One small network with uses of many kinds, tried with every change."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import oracle
from tests.uses.rules.exact import Unmasked, randomized

layers = keras.layers


class Away(layers.Layer):
    """Subtracts its weight."""

    def build(self, shape):
        self.origin = self.add_weight(shape=shape[-1:])

    def call(self, x):
        return x - self.origin


@pytest.mark.usefixtures("float64")
def test_gradients_are_the_oracles():
    ids = keras.Input((4,), dtype="int32")
    x = layers.Embedding(6, 3, mask_zero=True)(ids)
    x = layers.LSTM(3, return_sequences=True)(x)
    x = Unmasked()(layers.GRU(2, return_sequences=True)(x))
    x = layers.Reshape((4, 2))(x)
    # Zeros on one side: a kernel of two.
    x = layers.Conv1D(6, 2, padding="same", activation="tanh")(x)
    x = layers.Reshape((4, 2, 3))(Away()(x))
    outputs = layers.EinsumDense("abcd,ecd->aeb", (5, 4), bias_axes="e")(x)
    model = randomized(keras.Model(ids, outputs))
    model.compile("sgd", "mse")
    # Padding in front, inside and at the end.
    x = np.array([[1, 2, 0, 3], [0, 4, 4, 0], [5, 1, 2, 3]])
    y = np.random.default_rng(0).normal(size=(3, 5, 4))
    found = kpg.per_sample_gradients(model, x, y)
    oracle.check(found, model, x, y=y)
