import numpy as np
import pytest

from keras_pergrad.checking.numerics import judge, judge_all, tolerance, unit


def test_equal_numbers_are_exact():
    verdict = judge([1.0, np.inf, np.nan], [1.0, np.inf, np.nan])
    assert (verdict.verdict, verdict.error, verdict.index) == ("exact", 0, None)


@pytest.mark.parametrize("terms", [1, 100, 10_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_another_order_of_summing_is_rounding(dtype, terms):
    random = np.random.default_rng(0)
    numbers = random.normal(size=(50, terms)).astype(dtype)
    forwards = np.zeros(50, dtype)
    backwards = np.zeros(50, dtype)
    for i in range(terms):
        forwards += numbers[:, i]
        backwards += numbers[:, -1 - i]
    verdict = judge(forwards, backwards, dtype, terms)
    assert verdict.ok
    assert (verdict.verdict == "exact") == (terms == 1)


def test_a_wrong_number_is_found_where_it_is():
    right = np.ones((3, 4))
    wrong = right.copy()
    wrong[2, 1] += 1e-3
    verdict = judge(right, wrong, terms=1000)
    assert (verdict.verdict, verdict.index) == ("wrong", (2, 1))
    assert verdict.error == pytest.approx(1e-3)


def test_tolerance_grows_with_terms_and_shrinks_with_precision():
    assert tolerance("float32", 4) < tolerance("float32", 400)
    types = ["float64", "float32", "float16", "bfloat16"]
    found = [tolerance(name) for name in types]
    assert found == sorted(found)
    assert tolerance(np.float32) == tolerance("float32")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_infinities_and_nans_on_one_side_are_wrong(bad):
    assert not judge([1.0, 2.0], [1.0, bad]).ok
    assert not judge([1.0, bad], [1.0, 2.0]).ok


def test_a_zero_by_cancellation_needs_a_scale():
    assert not judge([0.0], [1e-8]).ok
    assert judge([0.0], [1e-8], scale=1.0).ok


def test_empty_arrays_agree():
    assert judge(np.zeros((0, 3)), np.zeros((0, 3))).verdict == "exact"


def test_results_of_one_computation_share_a_scale():
    right, found = [[1.0, -3.0], [0.0]], [[1.0, -3.0], [1e-9]]
    verdicts = judge_all(["a", "b"], right, found, "float32")
    assert [v.verdict for v in verdicts.values()] == ["exact", "rounding"]
    own = judge_all(["a", "b"], right, found, "float32", scales=[1.0, 1e-6])
    assert not own["b"].ok
    assert own["b"].sentence("b").startswith("b differs by 1e-09 (relative")


@pytest.mark.parametrize("name", ["float64", "float32", "float16"])
def test_the_unit_is_the_formats(name):
    assert unit(name) == np.finfo(name).eps


def test_refusals_name_what_came():
    with pytest.raises(ValueError, match=r"one shape.*\(2,\) and \(3,\)"):
        judge([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"float64, float32.*int32"):
        tolerance("int32")
    with pytest.raises(ValueError, match=r"1 or more.*terms=0"):
        tolerance("float32", 0)
