"""One small network in modes that take a batch apart, or clip nothing."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models.making import assert_equal, compiled, net, trained
from tests.modes.big_batch import Added

layers = keras.layers
X = np.random.default_rng(0).normal(size=(11, 5))
Y = np.random.default_rng(1).normal(size=(11, 2, 3))


def _trained(mode, size, **how):
    """Return the weights after an epoch of two updates."""
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(6, "tanh", kernel_regularizer="l2")
    model = net(hidden, Added(), layers.Reshape((2, 3)), units=None)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, loss_scale_factor=8.0)
    model = compiled(model, mode, optimizer=optimizer, **how)
    trained(model, X, Y, batch_size=size)
    assert int(optimizer.iterations) == 2
    return model.get_weights()


@pytest.mark.usefixtures("float64")
def test_trains_as_keras_does():
    """Batches of 7 and 4, of 3, 3 and 1, of 3 and 1, and of single samples."""
    right = _trained(None, 7, run_eagerly=True)
    for size, mode in (
        (7, kpg.Vectorized(kpg.ClippedMean(1e6))),
        (7, kpg.Accumulated(microbatch_size=3)),
        (1, kpg.Accumulated(steps=7)),
    ):
        found = _trained(mode, size, jit_compile=False)
        assert_equal(found, right, rtol=1e-10, atol=1e-10)
