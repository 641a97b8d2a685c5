import numpy as np
import pytest

from keras_pergrad.runs.alignment import align
from keras_pergrad.runs.divergence import find_divergence
from tests.runs import made_up

STEPS = 30
FIRST, BIAS, LAST = slice(0, 200), slice(200, 210), slice(210, 300)


@pytest.fixture
def runs():
    """Three repeats of a run, differing by rounding."""
    path = made_up.around(1.0, 8.0, STEPS, seed=0)
    path[:, BIAS] *= 1e-2
    return [path + made_up.around(0.0, 1e-5, STEPS, seed=k) for k in (1, 2, 3)]


def _diverge(log_dir, runs, steps=None, *, max_steps=512, common=None):
    for name, gradients in zip("abcdef", runs):
        made_up.write(log_dir, name, gradients, steps=steps, seed=0)
    indices = np.arange(len(runs))
    aligned = align(log_dir, max_steps)
    return find_divergence(aligned, indices, 1e-3, common=common)


@pytest.mark.parametrize("faulty", [0, 1, 2])
@pytest.mark.parametrize(
    ("where", "path"),
    [(FIRST, "first/kernel"), (BIAS, "first/bias"), (LAST, "last/kernel")],
)
def test_a_fault_is_found(tmp_path, runs, where, *, path, faulty):
    """At its step, in its variable, in its run; also when it lasts."""
    runs[faulty][17:, where] *= 1.5
    runs[faulty][20:] *= 3.0
    found = _diverge(tmp_path, runs, steps=range(0, 300, 10))
    assert (found.step, found.outlier) == (170, "abc"[faulty])
    assert [v for v, _ in found.variables] == [path]
    assert found.variables[0][1] == pytest.approx(0.5, rel=0.5)
    assert found.first_step == found.differ_step == 0


@pytest.mark.parametrize("factor", [0.0, 1000.0, np.nan, np.inf])
def test_a_gradient_that_vanishes_or_explodes_is_found(tmp_path, runs, factor):
    runs[1][9, LAST] *= factor
    runs[1][9, FIRST] *= 1.01
    found = _diverge(tmp_path, runs)
    assert found.step == 9
    assert found.variables[0][0] == "last/kernel"
    assert found.outlier == "b"


def test_rounding_is_no_divergence_even_where_the_gradient_is_zero(
    tmp_path, runs
):
    for run in runs[:2]:
        run[:, BIAS] *= 1e-6  # rounding is all there is of this variable
        run[5] = np.nan
        run[6] = 0.0
    runs[1][:4] = runs[0][:4]
    found = _diverge(tmp_path, runs[:2])
    assert found.differ_step == 4
    assert found.step is None
    assert 0 < found.largest < 1e-3
    assert found.outlier is None


def test_two_runs_and_all_apart_have_no_odd_one(tmp_path, runs):
    runs[1][4:, FIRST] *= 2
    found = _diverge(tmp_path / "two", runs[:2])
    assert (found.step, found.outlier) == (4, None)
    runs = [made_up.around(1.0, 9.0, 3, seed=k) for k in range(4)]
    found = _diverge(tmp_path / "apart", runs)
    assert (found.step, found.outlier) == (0, None)
    assert len(found.variables) == 3


def test_between_thinned_steps_and_blocks(tmp_path, runs, monkeypatch):
    """What is shown is thinned; what diverges is found at every step."""
    monkeypatch.setattr("keras_pergrad.runs.divergence._NUMBERS_AT_ONCE", 500)
    runs[2][11, FIRST] *= 1.2
    found = _diverge(tmp_path, runs, max_steps=3, common="seed 0")
    assert (found.step, found.outlier, found.common) == (11, "c", "seed 0")


def test_runs_without_a_common_step(tmp_path, runs):
    for name, first in (("a", 0), ("b", 20), ("c", 10)):
        steps = range(first, first + 15)
        made_up.write(tmp_path, name, runs[0][:15], steps=steps)
    found = find_divergence(align(tmp_path, 99), [0, 1], 1e-3, common="seed 0")
    assert (found.first_step, found.step) == (None, None)


@pytest.mark.parametrize("short", [0, 2])
def test_a_run_that_ends_early_hides_nothing(tmp_path, runs, short):
    """Where it ends the others are compared, and that is said."""
    runs = [*runs, runs[0]]
    runs[1][17, LAST] *= 1.5
    runs[short] = runs[short][:3]
    found = _diverge(tmp_path, runs)
    assert (found.step, found.outlier) == (17, "b")
    assert [v for v, _ in found.variables] == ["last/kernel"]
    assert found.ends == [("abc"[short], 2)]


def test_where_a_set_ends_is_known(tmp_path, runs):
    """Runs that are equal bit for bit never part."""
    lengths = 9, 5, 4, 3, 2
    found = _diverge(tmp_path, [runs[0][:length] for length in lengths])
    assert found.differ_step is found.step is None
    assert found.largest == 0
    assert found.ends == [("e", 1), ("d", 2), ("c", 3), ("b", 4)]


def test_runs_that_were_measured_at_different_steps(tmp_path, runs):
    """Each two meet at other steps; the first to differ counts."""
    runs[2][6:] *= 1.1
    for name, run, every in zip("abc", runs, (2, 3, 6)):
        chosen = slice(None, None, every)
        steps = np.arange(STEPS)[chosen]
        made_up.write(tmp_path, name, run[chosen], steps=steps, seed=0)
    found = find_divergence(align(tmp_path, 99), [0, 1, 2], 1e-3)
    assert (found.first_step, found.step, found.outlier) == (0, 6, "c")
