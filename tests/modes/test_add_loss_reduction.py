"""Sums and means given to `add_loss` are told apart, zeros or not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.modes import microbatches
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
def test_losses_of_value_zero(layer, zeros, mode, execution):
    found, loss = fitted(layer, MODES[mode], zeros, **EXECUTION[execution])
    expected, plain_loss = fitted(layer, None, zeros, jit_compile=False)
    assert_equal(found, expected, rtol=1e-10, atol=1e-10)
    # An eager step logs in single precision with Keras 3.8.
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-6)


@pytest.mark.parametrize("zeros", [0, 8, 17, 19])
def test_kinds(zeros):
    x = tf.constant(data(zeros)[0])
    found = microbatches.add_loss_kinds(model(Late), x)
    assert list(map(float, found)) == [1, 0, 1]


class OverRoot(keras.layers.Layer):
    """Adds what is neither a sum nor a mean."""

    def call(self, x):
        root = keras.ops.sqrt(keras.ops.cast(keras.ops.shape(x)[0], x.dtype))
        self.add_loss(keras.ops.sum(x**2) / root)
        return x


@pytest.mark.parametrize("mode", MODES)
def test_what_is_neither_is_refused_and_not_a_number_under_xla(mode):
    with pytest.raises(tf.errors.InvalidArgumentError, match="nor a mean"):
        fitted(OverRoot, MODES[mode], jit_compile=False)
    # XLA drops assertions.
    weights, _ = fitted(OverRoot, MODES[mode], jit_compile=True)
    assert np.isnan(weights[0]).all()
