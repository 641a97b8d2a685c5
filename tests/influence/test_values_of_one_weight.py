"""Values of samples for a model of one weight, by hand."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.callbacks import SampleValues

RATE = 0.3


@pytest.mark.usefixtures("float64")
def test_values_of_the_second_order():
    """They add up to what the step lowers a quadratic loss by."""
    inputs = keras.Input((1,))
    outputs = keras.layers.Dense(1, use_bias=False)(inputs)
    model = kpg.PerGradModel(inputs, outputs)
    sgd = keras.optimizers.SGD(RATE)
    model.compile(sgd, "mse", gradient_mode="vectorized", jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 1))
    x_val, y_val = rng.normal(size=(2, 3, 1))
    before = model.get_weights()[0][0, 0]
    values = SampleValues((x_val, y_val), order=2)
    model.fit(x, y, batch_size=5, verbose=0, callbacks=[values])
    slopes = 2 * (before * x - y) * x
    slope = np.mean(2 * (before * x_val - y_val) * x_val)
    curvature = np.mean(2 * x_val**2)
    direction = slope - RATE / 2 * curvature * slopes.mean()
    right = RATE / 5 * slopes[:, 0] * direction
    np.testing.assert_allclose(values.values, right, rtol=1e-10)
    after = model.get_weights()[0][0, 0]
    losses = [np.mean((w * x_val - y_val) ** 2) for w in (before, after)]
    np.testing.assert_allclose(right.sum(), losses[0] - losses[1], rtol=1e-10)
