"""Sums and means given to `add_loss` are told apart, zeros or not."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.modes import microbatches

pytestmark = pytest.mark.usefixtures("float64")


class Late(keras.layers.Layer):
    """Adds a sum and a mean that are zero for samples of zeros, and nothing."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(x**2))
        self.add_loss(keras.ops.mean(keras.ops.maximum(x - 1, 0)))
        self.add_loss(0 * keras.ops.sum(x))
        return x


def model(cls, layer=Late, **arguments):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, activation="relu")(inputs)
    result = cls(inputs, keras.layers.Dense(3)(layer()(hidden)))
    result.compile(keras.optimizers.SGD(0.1), "mse", **arguments)
    return result


def data(zeros):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(19, 5)), rng.normal(size=(19, 3))
    x[:zeros] = 0
    return x, y


def trained(cls, zeros, **arguments):
    net = model(cls, **{"jit_compile": False, **arguments})
    x, y = data(zeros)
    loss = net.fit(x, y, batch_size=19, verbose=0).history["loss"]
    return net.get_weights(), loss


@pytest.mark.parametrize("execution", ["graph", "eager", "xla"])
def test_first_samples_without_a_loss(execution):
    arguments = {
        "run_eagerly": execution == "eager",
        "jit_compile": execution == "xla",
    }
    mode = kpg.Accumulated(microbatch_size=4)
    found = trained(kpg.PerGradModel, 17, gradient_mode=mode, **arguments)
    expected = trained(keras.Model, 17)
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    # An eager step logs in single precision with Keras 3.8.
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)


class Straight(keras.layers.Layer):
    """Adds a sum and a mean of value 0 that have a gradient."""

    def call(self, x):
        zero = x - keras.ops.stop_gradient(x)
        self.add_loss(0.3 * keras.ops.sum(zero))
        self.add_loss(0.2 * keras.ops.mean(zero))
        return x


@pytest.mark.parametrize("execution", ["graph", "eager"])
@pytest.mark.parametrize(
    "mode",
    [kpg.PerSample(), kpg.Accumulated(microbatch_size=4)],
    ids=["per_sample", "accumulated"],
)
def test_losses_of_value_zero_with_a_gradient(mode, execution):
    arguments = {"run_eagerly": execution == "eager", "jit_compile": False}

    def weights(cls, **mode):
        net = model(cls, layer=Straight, **arguments, **mode)
        net.fit(*data(0), batch_size=19, verbose=0)
        return net.get_weights()

    found = weights(kpg.PerGradModel, gradient_mode=mode)
    for a, b in zip(found, weights(keras.Model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("zeros", [0, 8, 17, 19])
def test_kinds(zeros):
    net = model(keras.Model)
    x, _ = data(zeros)
    found = map(float, microbatches.add_loss_kinds(net, tf.constant(x)))
    assert list(found) == [1, 0, 1]


class OverRoot(keras.layers.Layer):
    """Adds what is neither a sum nor a mean."""

    def call(self, x):
        root = keras.ops.sqrt(keras.ops.cast(keras.ops.shape(x)[0], x.dtype))
        self.add_loss(keras.ops.sum(x**2) / root)
        return x


@pytest.mark.parametrize("mode", ["per_sample", "accumulated", "in vectorized"])
def test_what_is_neither_is_refused_and_not_a_number_under_xla(mode):
    inner = "vectorized" if mode == "in vectorized" else "batch"
    if mode != "per_sample":
        mode = kpg.Accumulated(microbatch_size=4, inner=inner)

    def weights(jit):
        how = {"gradient_mode": mode, "jit_compile": jit}
        net = model(kpg.PerGradModel, OverRoot, **how)
        net.fit(*data(0), batch_size=19, verbose=0)
        return net.get_weights()

    with pytest.raises(tf.errors.InvalidArgumentError, match="nor a mean"):
        weights(False)
    # XLA drops assertions.
    assert np.isnan(weights(True)[0]).all()
