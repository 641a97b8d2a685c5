"""A refusal shows the line of the user's own code that made the op."""

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = X[:, :1]


class Centred(keras.layers.Layer):
    """Takes the mean of the batch away."""

    def call(self, x):
        return x - tf.reduce_mean(x, 0)  # in a layer


class Looped(keras.layers.Layer):
    """Mixes inside of a loop."""

    def call(self, x):
        def turn(k, v):
            return k + 1, v + tf.reduce_sum(v, 0)

        return tf.while_loop(lambda k, v: k < 3, turn, (0, x))[1]


def _largest(y, p):
    return keras.ops.mean((y - p) ** 2) / keras.ops.max(p)  # in a loss


def _model(*layers):
    first, last = keras.layers.Dense(3), keras.layers.Dense(1)
    made = keras.Sequential([keras.Input((3,)), first, *layers, last])
    return kpg.PerGradModel.from_model(made)


def _line(mark):
    """Return "line n: code" of the line of this file that has a comment."""
    path = inspect.getsourcefile(_line)
    with open(path) as file:
        for number, line in enumerate(file, 1):
            if line.rstrip().endswith(f"# {mark}"):
                return f"{path}, line {number}: {line.strip()}"
    raise AssertionError(mark)


def _refusal(model, loss="mse", fit=True, **settings):
    mode = "vectorized" if fit else "batch"
    model.compile("sgd", loss, gradient_mode=mode, **settings)
    asked = model.fit if fit else functools.partial(kpg.per_sample_norms, model)
    options = {"verbose": 0}
    with pytest.raises(ValueError) as caught:
        asked(X, Y, **options)
    return str(caught.value)


@pytest.mark.parametrize("settings", [{}, {"jit_compile": True}])
def test_it_is_of_a_layer(settings):
    assert _line("in a layer") in _refusal(_model(Centred()), **settings)


def test_it_is_of_a_loss():
    assert _line("in a loss") in _refusal(_model(), _largest)


def test_it_is_shown_by_functions():
    assert _line("in a layer") in _refusal(_model(Centred()), fit=False)


def test_an_op_in_a_loop_has_the_line_of_the_loop():
    found = _refusal(_model(Looped()))
    assert "The op is made in" in found
    assert "tf.while_loop" in found


def test_layers_of_keras_have_no_line():
    layer = keras.layers.BatchNormalization()
    assert "is made in" not in _refusal(_model(layer))


class OwnStep(kpg.PerGradModel):
    """Asks for gradients in a step of its own."""

    def train_step(self, data):
        x, y = data
        return self.compute_gradients(self.of_samples, x, y).logs

    def of_samples(self, x, y, sample_weight):
        del sample_weight
        return keras.losses.mean_squared_error(y, self(x, training=True))


def test_a_step_of_ones_own_is_not_what_makes_the_op():
    layer = keras.layers.BatchNormalization()
    inputs = keras.Input((3,))
    model = OwnStep(inputs, keras.layers.Dense(1)(layer(inputs)))
    assert "compute_gradients" not in _refusal(model)
