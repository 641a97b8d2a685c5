"""An op without a rule is named once as slow, with the way out."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled

X, Y = np.ones((4, 3), "float32"), np.ones((4, 1), "float32")


class Gamma(keras.layers.Layer):
    """Has a weight in an op without a rule."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        return tf.math.igammac(tf.nn.softplus(x), self.weight)


def _model(*inner):
    made = keras.Sequential([keras.Input((3,)), *inner, keras.layers.Dense(1)])
    return compiled(made, "vectorized")


def _told(function, *args, **settings):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*args, **settings)
    return [str(w.message) for w in found if "are slow" in str(w.message)]


def test_it_is_said_once_for_each_model():
    for _ in range(2):
        model = _model(Gamma(), Gamma())
        (text,) = _told(model.fit, X, Y, epochs=2, verbose=0)
        assert "op Igammac" in text
        assert "op Igammac has no rule" in text
        assert "keras_pergrad.explain(model)" in text
        assert not _told(kpg.per_sample_norms, model, X, Y)


def test_functions_say_it():
    model = _model(Gamma())
    with pytest.warns(UserWarning, match="are slow in the op Igammac"):
        kpg.per_sample_norms(model, X, Y)


def test_ops_with_a_rule_are_not_named():
    model = _model(keras.layers.Dense(3), keras.layers.LayerNormalization())
    assert not _told(model.fit, X, Y, verbose=0)
