"""Sums and means given to `add_loss` are told apart, zeros or not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.uses import TracedStep, added_powers
from tests.models.making import assert_equal, compiled, net, normal, trained
from tests.modes.big_batch import EXECUTION

pytestmark = pytest.mark.usefixtures("float64")


class Late(keras.layers.Layer):
    """Adds a sum and a mean that are zero for samples of zeros, and nothing."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(x**2))
        self.add_loss(keras.ops.mean(keras.ops.maximum(x - 1, 0)))
        self.add_loss(0 * keras.ops.sum(x))
        return x


class Straight(keras.layers.Layer):
    """Adds a sum and a mean of value 0 that have a gradient."""

    def call(self, x):
        zero = x - keras.ops.stop_gradient(x)
        self.add_loss(0.3 * keras.ops.sum(zero))
        self.add_loss(0.2 * keras.ops.mean(zero))
        return x


def model(layer):
    keras.utils.set_random_seed(1)
    return net(keras.layers.Dense(4, "relu"), layer())


def data(zeros):
    x = normal(19, 5)
    x[:zeros] = 0
    return x, normal(19, 3, seed=1)


def fitted(layer, mode, zeros=0, **how):
    """The weights after one batch, and the loss."""
    made = compiled(model(layer), mode, **how)
    trained(made, *data(zeros), batch_size=19)
    return made.get_weights(), made.history.history["loss"]


MODES = {
    "per_sample": "per_sample",
    "accumulated": kpg.Accumulated(microbatch_size=4),
    "in vectorized": kpg.Accumulated(microbatch_size=4, inner="vectorized"),
}


@pytest.mark.parametrize(
    ("layer", "zeros", "mode", "execution"),
    [
        # The first samples have no loss.
        *((Late, 17, "accumulated", execution) for execution in EXECUTION),
        *((Straight, 0, "per_sample", how) for how in ("graph", "eager")),
        *((Straight, 0, "accumulated", how) for how in ("graph", "eager")),
    ],
)
def test_losses_of_value_zero(layer, zeros, mode, *, execution):
    found, loss = fitted(layer, MODES[mode], zeros, **EXECUTION[execution])
    expected, plain_loss = fitted(layer, None, zeros, jit_compile=False)
    assert_equal(found, expected, rtol=1e-10, atol=1e-10)
    # An eager step logs in single precision with Keras 3.8.
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-6)


class Reduced(keras.layers.Layer):
    """Adds sums and means in many forms."""

    def call(self, x):
        ops = keras.ops
        n = ops.cast(ops.shape(x)[0], x.dtype)
        count = ops.cast(ops.size(x), x.dtype)
        sums = ops.sum(x**2), 0.5 * ops.sum(ops.mean(x**2, -1)), n * ops.mean(x)
        means = (
            ops.mean(x) + 2 * ops.mean(x**2) - 0.5,
            ops.sum(x**2) / n,
            ops.sum(x**2 / n) * 3,
            ops.sum(x**2) * (1 / count),
            keras.losses.MeanSquaredError()(x, 2 * x),
            ops.mean(ops.stack([ops.mean(x), ops.sum(x) / n])),
        )
        for loss in (*sums, *means):
            self.add_loss(loss)
        return x


def _powers(layer):
    made = compiled(model(layer), "batch")
    x, y = map(tf.constant, data(0))
    return added_powers(TracedStep(made, (x, y, None)))


def test_powers_are_known_from_the_ops():
    assert _powers(Late) == (0, 1, 0)
    assert _powers(Reduced) == (0,) * 3 + (1,) * 6


def _repeated(x, n):
    return keras.ops.sum(keras.ops.repeat(x, n, axis=1)) / n


#: What is neither a sum nor a mean, of (x, n).
NEITHER = {
    "over the root": lambda x, n: keras.ops.sum(x) / keras.ops.sqrt(n),
    "over one more": lambda x, n: keras.ops.sum(x) / (n + 1),
    "over the square": lambda x, n: keras.ops.mean(x) / n,
    "both": lambda x, n: keras.ops.sum(x) + keras.ops.mean(x),
    "a sum and a number": lambda x, n: keras.ops.sum(x) + 0.5,
    "repeated": lambda x, n: _repeated(x, keras.ops.shape(x)[0]),
    "a mean of ones": lambda x, n: (
        keras.ops.sum(x) * keras.ops.sum(keras.ops.ones_like(x)) / n
    ),
    "by places": lambda x, n: keras.ops.sum(
        x[:, 0] * keras.ops.arange(keras.ops.shape(x)[0], dtype=x.dtype)
    ),
}


@pytest.mark.parametrize("name", NEITHER)
def test_what_is_neither_is_known_from_the_ops(name):
    def layer():
        return keras.layers.Lambda(lambda x: x, activity_regularizer=add)

    def add(x):
        n = keras.ops.cast(keras.ops.shape(x)[0], x.dtype)
        return NEITHER[name](x, n)

    with pytest.raises(ValueError, match="nor a mean"):
        _powers(layer)


class OverRoot(keras.layers.Layer):
    """Adds what is neither a sum nor a mean."""

    def call(self, x):
        root = keras.ops.sqrt(keras.ops.cast(keras.ops.shape(x)[0], x.dtype))
        self.add_loss(keras.ops.sum(x**2) / root)
        return x


@pytest.mark.parametrize("mode", MODES)
def test_what_is_neither_is_refused_before_a_weight_changes(mode):
    made = compiled(model(OverRoot), MODES[mode], jit_compile=False)
    before = made.get_weights()
    with pytest.raises(ValueError, match="nor a mean"):
        trained(made, *data(0), batch_size=19)
    assert_equal(made.get_weights(), before)
