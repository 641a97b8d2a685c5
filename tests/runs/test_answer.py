"""One sentence: is what differs what seeds and nondeterminism make?"""

import numpy as np
import pytest

import keras_pergrad as kpg
from tests.runs import made_up

STEPS = 6
NORMAL = "The runs differ by what seeds and nondeterminism normally make"
MORE = "The runs differ by more than seeds and nondeterminism normally make"
UNKNOWN = "Whether the runs differ by more"


def _answer(log_dir, runs, by=None, tags=None):
    """Runs as (seed, gradients)."""
    for k, (seed, gradients) in enumerate(runs):
        made_up.write(
            log_dir,
            f"run {k}",
            gradients,
            seed=seed,
            device="CPU",
            tags=tags[k] if tags else {},
        )
    comparison = kpg.compare_runs(log_dir, by=by)
    assert comparison.answer in " ".join(str(comparison).split())
    assert comparison.answer in comparison._repr_html_()
    return comparison.answer


def _seed(seed, noise=0.0, repeat=0):
    gradients = made_up.around(1.0, 8.0, STEPS, seed)
    return seed, gradients + made_up.around(0, noise, STEPS, [seed, repeat])


def test_seeds_that_differ_alike_are_normal(tmp_path):
    answer = _answer(tmp_path, [_seed(k) for k in range(4)])
    assert answer == f"{NORMAL}: no seed stands out."


@pytest.mark.parametrize(
    ("noise", "why"),
    [
        (0.0, "repeats are equal in every bit, and no seed stands out"),
        (1e-6, "repeats differ by less than seeds, and no run stands out"),
    ],
)
def test_repeats_tell_how_far_nondeterminism_goes(tmp_path, noise, why):
    runs = [_seed(0, noise, 1), _seed(0, noise, 2), _seed(1), _seed(2)]
    assert _answer(tmp_path, runs) == f"{NORMAL}: {why}."


def test_equal_runs_do_not_differ(tmp_path):
    answer = _answer(tmp_path, [_seed(0)] * 2)
    assert answer == "The runs do not differ in any bit recorded."


def test_a_seed_far_from_the_others_stands_out(tmp_path):
    runs = [_seed(k) for k in range(5)]
    runs[3] = 3, runs[3][1] + 40.0
    answer = _answer(tmp_path, runs)
    assert answer == f"{MORE}: run 3 stands out from the others."


def test_a_repeat_far_from_the_others_stands_out(tmp_path):
    runs = [_seed(0, 1e-6, k) for k in range(3)]
    runs[1][1][3:] += 5.0
    answer = _answer(tmp_path, runs)
    assert answer == f"{MORE}: run 1 stands out from the others."


def test_gradients_that_are_not_finite_are_not_normal(tmp_path):
    runs = [_seed(k) for k in range(3)]
    runs[2][1][4:] = np.nan
    answer = _answer(tmp_path, runs)
    assert answer == f"{MORE}: gradients of run 2 are not finite."


def test_groups_that_differ_are_named(tmp_path):
    runs, tags = [], []
    for op in ("new", "old"):
        for k in range(3):
            seed, gradients = _seed(0, 0.1, [op == "new", k])
            runs.append((seed, gradients + (op == "new")))
            tags.append({"op": op})
    answer = _answer(tmp_path, runs, "op", tags)
    assert answer == f"{MORE}: new differs from old."


def test_seeds_are_meant_to_differ_from_their_repeats(tmp_path):
    runs = [_seed(k // 3, 1e-2, k) for k in range(9)]
    answer = _answer(tmp_path, runs, by="seed")
    assert answer.startswith(NORMAL)


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([_seed(0), _seed(1)], "two runs have no yardstick"),
        ([(0, np.zeros((STEPS, made_up.SIZE)))] * 2, "too few runs share"),
        ([_seed(0, 1.0, k) for k in (1, 2)], "no other seed shows how far"),
    ],
)
def test_what_cannot_be_known_is_said(tmp_path, runs, why):
    answer = _answer(tmp_path, runs)
    assert answer.startswith(UNKNOWN)
    assert why in answer


def test_repeats_that_part_at_once_are_no_rounding(tmp_path):
    runs = [_seed(0), _seed(0)]
    runs[1][1][3:] *= 1.5
    answer = _answer(tmp_path, runs)
    assert "part at step 3, while nondeterminism begins with" in answer
