"""One small network in modes that take a batch apart, or clip nothing."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_pergrad as kpg

layers = keras.layers
X = np.random.default_rng(0).normal(size=(11, 5))
Y = np.random.default_rng(1).normal(size=(11, 2, 3))


class Added(layers.Layer):
    """Gives `add_loss` a sum and a mean."""

    def call(self, x):
        self.add_loss(0.01 * ops.sum(x**2))
        self.add_loss(ops.mean(ops.abs(x)))
        return x


def _trained(cls, size, **arguments):
    """Return the weights after an epoch of two updates."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,))
    x = layers.Dense(6, "tanh", kernel_regularizer="l2")(inputs)
    model = cls(inputs, layers.Reshape((2, 3))(Added()(x)))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, loss_scale_factor=8.0)
    model.compile(optimizer, "mse", **arguments)
    model.fit(X, Y, batch_size=size, shuffle=False, verbose=0)
    assert int(optimizer.iterations) == 2
    return model.get_weights()


@pytest.mark.usefixtures("float64")
def test_trains_as_keras_does():
    """Batches of 7 and 4, of 3, 3 and 1, of 3 and 1, and of single samples."""
    right = _trained(keras.Model, 7, run_eagerly=True)
    for size, mode in (
        (7, kpg.Vectorized(kpg.ClippedMean(1e6))),
        (7, kpg.Accumulated(microbatch_size=3)),
        (1, kpg.Accumulated(steps=7)),
    ):
        how = {"gradient_mode": mode, "jit_compile": False}
        found = _trained(kpg.PerGradModel, size, **how)
        for one, other in zip(found, right, strict=True):
            np.testing.assert_allclose(
                one, other, rtol=1e-10, atol=1e-10, err_msg=repr(mode)
            )
