"""Second derivatives through normalisation, against plain formulas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

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
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(5, "tanh"), layer, layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return model


def _data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 3)), rng.normal(size=(N, 1))


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


def test_the_hessian_is_that_of_a_written_normalisation(float64):
    x, y = _data()
    found = [
        kpg.influence.Influence(
            _model(layer), x, y, curvature="exact", damping=30.0, verbose=0
        ).scores(x, y)
        for layer in (layers.LayerNormalization(epsilon=1e-3), _Written())
    ]
    np.testing.assert_allclose(*found, 1e-8)


def test_values_are_those_of_a_written_normalisation(float64):
    x, y = _data()
    found = []
    for layer in (layers.LayerNormalization(epsilon=1e-3), _Written()):
        model = kpg.PerGradModel.from_model(_model(layer))
        model.compile("sgd", "mse", gradient_mode="vectorized")
        values = kpg.callbacks.SampleValues((x, y), order=2)
        model.fit(x, y, batch_size=N, verbose=0, callbacks=[values])
        found.append(values.values)
    np.testing.assert_allclose(*found, 1e-8)


def test_functions_that_were_traced_before_are_refused(float64):
    x, _ = _data()
    model = _model(_Traced())
    with pytest.raises(ValueError, match="traced before"):
        kpg.input_gradients(model, x, order=2, batch_size=N, verbose=0)
    kpg.input_gradients(model, x, verbose=0)  # The first derivative is right.
