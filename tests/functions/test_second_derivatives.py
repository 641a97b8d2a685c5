"""Second derivatives through normalisation, against plain formulas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled, net, normal, trained

layers, ops = keras.layers, keras.ops
N = 6


@keras.saving.register_keras_serializable("tests")
class _Written(layers.Layer):
    """Layer normalisation, written out."""

    def __init__(self, epsilon=1e-3):
        super().__init__()
        self.epsilon = epsilon

    def build(self, shape):
        self.gamma = self.add_weight(shape=shape[-1:], initializer="ones")
        self.beta = self.add_weight(shape=shape[-1:], initializer="zeros")

    def call(self, x):
        away = x - ops.mean(x, -1, keepdims=True)
        variance = ops.mean(ops.square(away), -1, keepdims=True)
        return away / ops.sqrt(variance + self.epsilon) * self.gamma + self.beta


@keras.saving.register_keras_serializable("tests")
class _InLoop(layers.Layer):
    def call(self, x):
        def step(k, x):
            mean, variance = ops.moments(x, -1, keepdims=True)
            return k + 1, (x - mean) / ops.sqrt(variance + 0.1)

        return ops.while_loop(lambda k, x: k < 2, step, (0, x))[1]


@keras.saving.register_keras_serializable("tests")
class _Traced(layers.Layer):
    """Moments in a function that was traced before."""

    def __init__(self):
        super().__init__()
        self.function = tf.function(
            lambda x: x - tf.nn.moments(x, [-1], keepdims=True)[1]
        )
        self.function(tf.ones((2, 5), tf.float64))
        self.function(tf.ones((N, 5), tf.float64))

    def call(self, x):
        return self.function(x)


def _model(layer):
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(5, "tanh")
    return compiled(net(hidden, layer, shape=(3,), units=1))


def _data():
    return normal(N, 3), normal(N, 1, seed=1)


def _differences(model, x, step=1e-4):
    """The second derivative by each input, from three outputs."""
    found = []
    for d in step * np.eye(3):
        three = [model(x + k * d).numpy() for k in (1, 0, -1)]
        found.append((three[0] - 2 * three[1] + three[2]) / step**2)
    return np.stack(found, -1)


KINDS = {
    "none": layers.Identity,
    "layer": layers.LayerNormalization,
    "group": lambda: layers.GroupNormalization(1),
    "loop": _InLoop,
}


@pytest.mark.parametrize("name", KINDS)
def test_of_outputs_by_inputs(float64, name):
    model, (x, _) = _model(KINDS[name]()), _data()
    found = kpg.input_gradients(model, x, order=2, verbose=0)
    expected = _differences(model, x)
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


def test_scores_and_values_are_those_of_a_written_normalisation(float64):
    x, y = _data()
    scores, values = [], []
    for layer in (layers.LayerNormalization(epsilon=1e-3), _Written()):
        model = _model(layer)
        influence = kpg.influence.Influence(
            model, x, y, curvature="exact", damping=30.0, verbose=0
        )
        scores.append(influence.scores(x, y))
        found = kpg.callbacks.SampleValues((x, y), order=2)
        trained(compiled(model, "vectorized"), x, y, callbacks=[found])
        values.append(found.values)
    np.testing.assert_allclose(*scores, 1e-8)
    np.testing.assert_allclose(*values, 1e-8)


def test_functions_that_were_traced_before_are_refused(float64):
    x, _ = _data()
    model = _model(_Traced())
    with pytest.raises(ValueError, match="traced before"):
        kpg.input_gradients(model, x, order=2, batch_size=N, verbose=0)
    kpg.input_gradients(model, x, verbose=0)  # The first derivative is right.
