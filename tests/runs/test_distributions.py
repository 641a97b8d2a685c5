import math

import pytest
from scipy import stats

from keras_pergrad.runs.distributions import chi_square_quantile, f_tail


@pytest.mark.parametrize("degrees", [0.3, 1, 2.5, 16, 400, 1e5])
@pytest.mark.parametrize("probability", [0.001, 0.025, 0.5, 0.975, 0.999])
def test_chi_square(probability, degrees):
    expected = stats.chi2.ppf(probability, degrees)
    found = chi_square_quantile(probability, degrees)
    assert found == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("first", [1, 3, 200])
@pytest.mark.parametrize("second", [1, 4, 1000])
def test_f(first, second):
    for value in (0.01, 0.5, 1, 3, 20, 400):
        expected = stats.f.sf(value, first, second)
        found = f_tail(value, first, second)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-200)


def test_the_ends_of_f():
    assert f_tail(0, 1, 1) == 1
    assert f_tail(math.inf, 1, 1) == 0
