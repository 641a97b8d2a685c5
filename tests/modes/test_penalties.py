"""Weight regularisers count as an own `compute_loss` counts them."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_pergrad as kpg
from tests.models.making import assert_equal, net

X = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
Y = X[:, :3] * 2
# What a compute_loss makes of the mean squared error and the penalties.
KINDS = {
    "left out": lambda error, penalties: error,
    "added": lambda error, penalties: error + sum(penalties),
    "weighed": lambda error, penalties: error + 0.3 * sum(penalties),
    "first only": lambda error, penalties: error + penalties[0],
    "twice": lambda error, penalties: error + sum(penalties) + sum(penalties),
    "square": lambda error, penalties: error + ops.square(sum(penalties)),
}


def make(base, kind):
    class Own(base):
        def compute_loss(
            self, x=None, y=None, y_pred=None, sample_weight=None, training=True
        ):
            error = ops.mean(ops.square(y - y_pred))
            penalties = self.losses if kind != "left out" else []
            return KINDS[kind](error, penalties)

    keras.utils.set_random_seed(0)
    l2 = keras.regularizers.L2(0.5)
    first = keras.layers.Dense(4, kernel_regularizer=l2)
    ones = {"bias_initializer": "ones", "bias_regularizer": l2}
    second = keras.layers.Dense(3, **ones)
    return net(first, second, units=None, cls=Own if kind else base)


def update(base, kind, scale=None, **arguments):
    model = make(base, kind)
    before = model.get_weights()
    optimizer = keras.optimizers.SGD(1.0, loss_scale_factor=scale)
    loss = None if kind else "mse"
    model.compile(optimizer, loss, jit_compile=False, **arguments)
    model.fit(X, Y, verbose=0)
    return [a - b for a, b in zip(before, model.get_weights())]


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_as_in_keras(kind):
    expected = update(keras.Model, kind)
    for mode in ("vectorized", "per_sample"):
        found = update(kpg.PerGradModel, kind, gradient_mode=mode)
        assert_equal(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clips", [kpg.Vectorized, kpg.PerSample])
@pytest.mark.parametrize("kind", ["left out", "weighed"])
def test_beside_the_clipped_gradients(kind, clips):
    """They are not clipped, nor scaled with the loss."""
    mode = clips(kpg.ClippedMean(1e-9))
    found = update(kpg.PerGradModel, kind, scale=16.0, gradient_mode=mode)
    weight = {"left out": 0.0, "weighed": 0.3}[kind]
    model = make(keras.Model, kind)
    kernel = model.layers[1].kernel.numpy()
    np.testing.assert_allclose(found[0], weight * kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[3], weight * np.ones(3), atol=1e-6)


@pytest.mark.parametrize("kind", ["left out", "added"])
def test_the_measured_gradient_is_that_of_the_data(kind):
    """GradientVariance takes off what the loss has added, and no more."""
    norms = []
    for this in (kind, "left out"):
        model = make(keras.Model, this)
        # Eagerly the whole gradient is measured, then the penalties taken off.
        model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
        watch = kpg.callbacks.GradientVariance(probe=(X, Y), repeats=1)
        model.fit(X, Y, verbose=0, callbacks=[watch])
        norms.append(watch.readings[-1].figures["gradient_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
