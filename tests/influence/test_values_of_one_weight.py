"""Values of samples for a model of one weight, by hand."""

import keras
import numpy as np
import pytest

from keras_pergrad.callbacks import SampleValues
from tests.models.making import compiled, net, trained

RATE = 0.3


@pytest.mark.usefixtures("float64")
def test_values_of_the_second_order():
    """They add up to what the step lowers a quadratic loss by."""
    bare = keras.layers.Dense(1, use_bias=False)
    model = net(bare, shape=(1,), units=None)
    model = compiled(model, "vectorized", rate=RATE, jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 1))
    x_val, y_val = rng.normal(size=(2, 3, 1))
    before = model.get_weights()[0][0, 0]
    values = SampleValues((x_val, y_val), order=2)
    trained(model, x, y, batch_size=5, callbacks=[values])
    slopes = 2 * (before * x - y) * x
    slope = np.mean(2 * (before * x_val - y_val) * x_val)
    curvature = np.mean(2 * x_val**2)
    direction = slope - RATE / 2 * curvature * slopes.mean()
    right = RATE / 5 * slopes[:, 0] * direction
    np.testing.assert_allclose(values.values, right, rtol=1e-10)
    after = model.get_weights()[0][0, 0]
    losses = [np.mean((w * x_val - y_val) ** 2) for w in (before, after)]
    np.testing.assert_allclose(right.sum(), losses[0] - losses[1], rtol=1e-10)
