import numpy as np
import pytest

from keras_pergrad.runs.moments import Moments


def _of(values):
    moments = Moments(values.shape[1:])
    for value in values:
        moments.add(value)
    return moments


def test_one_pass_gives_mean_and_variance():
    # A mean far above the spread: sums of squares would lose the spread.
    values = 1e8 + np.random.default_rng(0).normal(size=(50, 3))
    moments = _of(values)
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-15)
    np.testing.assert_allclose(moments.variance, values.var(0, ddof=1), 1e-7)


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_parts_merge_to_the_whole(cut):
    values = np.random.default_rng(1).normal(size=(20, 4)) + 5
    here, there = _of(values[:cut]), _of(values[cut:])
    both, whole = here.merge(there), _of(values)
    np.testing.assert_allclose(both.mean, whole.mean, 1e-14)
    np.testing.assert_allclose(both.squares, whole.squares, 1e-12)
    assert (both.count == 20).all()
    assert (here.count == cut).all()


def test_nan_does_not_count():
    moments = _of(np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, 7.0]]))
    np.testing.assert_array_equal(moments.count, [2, 1])
    np.testing.assert_array_equal(moments.average, [2, 7])
    np.testing.assert_array_equal(moments.variance, [2, np.nan])
    assert np.isnan(Moments(1).average)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"shape \(2,\). Received: .*\(3,\)"):
        Moments(2).add(np.zeros(3))
    with pytest.raises(ValueError, match=r"shape \(2,\). Received: .*\(\)"):
        Moments(2).merge(Moments())
