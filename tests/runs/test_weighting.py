import numpy as np
import pytest

from keras_pergrad.runs import weighting
from keras_pergrad.runs.kinship import Kinship


def test_without_repeats_they_are_those_of_the_sample():
    values = np.random.default_rng(0).normal(1e6, 1.0, (4, 7))
    units = np.arange(7)
    mean = weighting.average(values, units)
    np.testing.assert_allclose(mean, values.mean(1), rtol=1e-14)
    found = weighting.deviation(values, units)
    np.testing.assert_allclose(found, values.std(1, ddof=1), rtol=1e-6)


def test_equal_repeats_count_as_one():
    once = np.array([[1.0, 5.0, 9.5]])
    often = np.repeat(once, [8, 1, 2], axis=1)
    units = np.repeat([4, 0, 7], [8, 1, 2])
    mean = weighting.average(often, units)
    np.testing.assert_allclose(mean, once.mean(1), rtol=1e-12)
    found = weighting.deviation(often, units)
    np.testing.assert_allclose(found, once.std(1, ddof=1), rtol=1e-12)


def test_the_deviation_is_the_mean_difference_of_two_units():
    """As the trace is: what repeats differ by is in it."""
    units = np.array([0, 0, 0, 1, 2])
    values = np.array([[1.0, 2.0, 4.0, 8.0, 7.0]])
    weights = weighting.pairs(weighting.members(units))
    assert weights.sum() == pytest.approx(1)
    apart = (values[0][:, None] - values[0]) ** 2
    expected = np.sqrt(0.5 * (weights * apart).sum())
    assert weighting.deviation(values, units) == pytest.approx(expected)


def test_what_is_not_there_does_not_count():
    values = np.array([[np.nan, 3.0, 5.0], [np.nan, 2.0, np.nan], [np.nan] * 3])
    mean = weighting.average(values, np.array([0, 0, 1]))
    np.testing.assert_allclose(mean, [4, 2, np.nan])
    found = weighting.deviation(values, np.array([0, 0, 1]))
    np.testing.assert_allclose(found, [np.sqrt(2), np.nan, np.nan])
    assert (weighting.deviation(np.full((1, 3), 0.1), np.arange(3)) == 0).all()


def test_runs_of_one_seed_alone_count_each_for_itself():
    alone = Kinship([{"seed": 3}] * 3)
    np.testing.assert_array_equal(weighting.units(alone), [0, 1, 2])
    three = Kinship([{"seed": 3}, {"seed": 3}, {"seed": 4}])
    np.testing.assert_array_equal(weighting.units(three), three.seeds)
