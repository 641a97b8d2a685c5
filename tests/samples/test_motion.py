"""What counts as moved when a sample is exchanged."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.samples.motion import Change, axes_of_samples, watch

DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e5m2"]


def _array(values, dtype):
    return np.asarray(values, "float32").astype(
        tf.as_dtype(dtype).as_numpy_dtype
    )


def _motion(before, after):
    axes = axes_of_samples(before.shape, (5, *before.shape[1:]), 3)
    return watch([Change.of(1, before, after, axes)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_and_stays_has_not_moved(dtype, odd):
    before = _array([[odd, 1], [2, 1], [odd, 1]], dtype)
    after = _array([[odd, 1], [4, 1], [odd, 1]], dtype)
    found = _motion(before, after)
    assert found.moved
    assert not found.mixed
    assert not _motion(before, before).moved


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_becomes_nan_has_moved(dtype):
    before = _array([[1, 1], [2, 1], [1, 1]], dtype)
    after = _array([[1, 1], [np.nan, 1], [1, 1]], dtype)
    found = _motion(before, after)
    assert found.moved
    assert not found.mixed
    other = _array([[np.nan, 1], [np.nan, 1], [1, 1]], dtype)
    assert _motion(before, other).mixed


def test_another_shape_is_mixed():
    before = np.zeros((3, 2))
    assert _motion(before, np.zeros((3, 1))).mixed
