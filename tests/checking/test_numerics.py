import numpy as np
import pytest

from keras_pergrad.checking.numerics import judge, tolerance, unit

ZERO = np.zeros((0, 3))
BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize(
    ("right", "found", "settings", "verdict"),
    [
        ([1.0, np.inf, np.nan], [1.0, np.inf, np.nan], {}, "exact"),
        (ZERO, ZERO, {}, "exact"),
        *(([1.0, 2.0], [1.0, bad], {}, "wrong") for bad in BAD),
        *(([1.0, bad], [1.0, 2.0], {}, "wrong") for bad in BAD),
        # A zero by cancellation needs a scale.
        ([0.0], [1e-8], {}, "wrong"),
        ([0.0], [1e-8], {"scale": 1.0}, "rounding"),
    ],
)
def test_numbers_are_judged(right, found, settings, *, verdict):
    judged = judge(right, found, **settings)
    assert (judged.verdict, judged.ok) == (verdict, verdict != "wrong")
    if verdict == "exact":
        assert (judged.error, judged.index) == (0, None)


@pytest.mark.parametrize("terms", [1, 100, 10_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_another_order_of_summing_is_rounding(dtype, terms):
    random = np.random.default_rng(0)
    numbers = random.normal(size=(50, terms)).astype(dtype)
    forwards, backwards = np.zeros((2, 50), dtype)
    for i in range(terms):
        forwards += numbers[:, i]
        backwards += numbers[:, -1 - i]
    verdict = judge(forwards, backwards, dtype, terms=terms)
    assert verdict.ok
    assert (verdict.verdict == "exact") == (terms == 1)


def test_a_wrong_number_is_found_where_it_is():
    right = np.ones((3, 4))
    wrong = right.copy()
    wrong[2, 1] += 1e-3
    verdict = judge(right, wrong, terms=1000)
    assert (verdict.verdict, verdict.index) == ("wrong", (2, 1))
    assert verdict.error == pytest.approx(1e-3)
    assert verdict.sentence("b").startswith("b differs by 0.001 (relative")


def test_tolerance_grows_with_terms_and_shrinks_with_precision():
    assert tolerance("float32", 4) < tolerance("float32", 400)
    types = ["float64", "float32", "float16", "bfloat16"]
    found = [tolerance(name) for name in types]
    assert found == sorted(found)
    assert tolerance(np.float32) == tolerance("float32")
    for name in types[:3]:
        assert unit(name) == np.finfo(name).eps


def test_refusals_name_what_came():
    with pytest.raises(ValueError, match=r"one shape.*\(2,\) and \(3,\)"):
        judge([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"'float64', 'float32'.*int32"):
        tolerance("int32")
    with pytest.raises(ValueError, match=r"1 or more.*terms=0"):
        tolerance("float32", 0)
