"""What a comparison says, above all of runs that break, end or never meet."""

import re

import numpy as np
import pytest

from keras_pergrad.diagnose import compare_runs
from tests.runs import made_up

STEPS = 8
NORMAL = (
    "The runs differ by no more than seeds and nondeterminism normally cause"
)
MORE = "The runs differ by more than seeds and nondeterminism normally cause"
UNKNOWN = "Whether the runs differ by more"


def _compare(log_dir, runs, by=None, *, steps=None, **arguments):
    """Runs as name → (seed, gradients); a name begins with its group."""
    for name, (seed, gradients) in runs.items():
        group = name.split()[0]
        made_up.write(
            log_dir,
            name,
            gradients,
            steps=(steps or {}).get(name),
            seed=seed,
            device=group if by == "device" else "CPU",
            tags={"op": group} if by == "op" else {},
            variance=50.0,
        )
    comparison = compare_runs(log_dir, by=by, **arguments)
    text = " ".join(str(comparison).split())
    page = comparison._repr_html_()
    for sentence in (comparison.answer, *comparison.verdict):
        assert sentence in text
    assert comparison.answer in page
    assert "nan" not in text
    assert "nan" not in page.replace("nance", "")
    return comparison


def _kinds(comparison):
    """The kind of each finding but for that of batches."""
    return [kind for kind in made_up.kinds(comparison) if kind != "sampling"]


def _gradients(seed=0, noise=0.0, repeat=0):
    gradients = made_up.around(1.0, 8.0, STEPS, seed=seed)
    return gradients + made_up.around(0, noise, STEPS, seed=[seed, repeat])


def _until(step):
    gradients = _gradients()
    gradients[step:] = np.nan
    return gradients


def _seeds(*seeds, noise=0.0):
    return {
        f"run {k}": (seed, _gradients(seed, noise, k))
        for k, seed in enumerate(seeds)
    }


def test_a_group_that_is_not_finite_is_not_called_alike(tmp_path):
    runs = {
        f"{device} {k}": (0, _gradients(0, 1e-3, k) * factor)
        for device, factor in (("CPU", 1), ("METAL", np.nan))
        for k in range(2)
    }
    comparison = _compare(tmp_path, runs, by="device")
    first, *_ = comparison.findings
    assert first.kind == "not_compared"
    assert "CPU and METAL share no step" in str(first)
    (broken,) = [f for f in comparison.findings if f.kind == "not_finite"]
    expected = ["METAL 0 (from step 0)", "METAL 1 (from step 0)"]
    assert broken.values["runs"] == expected


@pytest.mark.parametrize(
    ("noise", "shift", "kind"),
    [
        (0.1, 1, "groups_differ"),
        (0.0, 1, "groups_differ_from_equal"),
        (0.0, 0, "groups_equal"),
    ],
)
def test_groups_are_judged_by_their_repeats(tmp_path, noise, shift, *, kind):
    runs = {
        f"{op} {k}": (0, _gradients(0, noise, [plus, k]) + plus)
        for op, plus in (("new", shift), ("old", 0))
        for k in range(3)
    }
    comparison = _compare(tmp_path, runs, by="op")
    assert _kinds(comparison)[0] == kind
    said = comparison.answer == f"{MORE}: new differs from old."
    assert said == bool(shift)


@pytest.mark.parametrize(
    ("seeds", "kind"),
    [((1, 1), "groups_without_reference"), ((1, 2), "groups_confounded")],
)
def test_groups_of_one_run_say_what_to_train(tmp_path, seeds, kind):
    runs = {
        name: (seed, _gradients(seed, 0.1, k))
        for k, (name, seed) in enumerate(zip(("CPU 0", "METAL 0"), seeds))
    }
    comparison = _compare(tmp_path, runs, by="device")
    assert _kinds(comparison)[0] == kind
    assert "twice in one" in comparison.verdict[0].lower()
    assert comparison.answer.endswith("not all groups could be judged.")


def test_seeds_are_meant_to_differ_from_their_repeats(tmp_path):
    runs = _seeds(0, 0, 0, 1, 1, 1, 2, 2, 2, noise=1e-2)
    comparison = _compare(tmp_path, runs, by="seed")
    assert _kinds(comparison)[0] == "groups_differ"
    assert comparison.answer.startswith(NORMAL)


@pytest.mark.parametrize(
    ("other", "step"),
    [(_until(5), 5), (np.vstack([_gradients(), [[np.inf] * 300]]), 8)],
)
def test_equal_until_one_is_not_finite(tmp_path, other, step):
    runs = {"a": (0, _gradients()), "b": (0, other)}
    comparison = _compare(tmp_path, runs)
    assert _kinds(comparison)[:2] == ["equal_where_compared", "not_finite"]
    assert f"b (from step {step})" in comparison.verdict[1]
    assert comparison.answer == f"{MORE}: gradients of b are not finite."


def test_equal_but_for_a_step_that_is_not_shown(tmp_path):
    other = _gradients()
    other[3, :200] *= 1 + 1e-5
    runs = {"a": (0, _gradients()), "b": (0, other)}
    comparison = _compare(tmp_path, runs, max_steps=2)
    assert comparison.squared_distances[0, 1] == 0
    assert _kinds(comparison)[:2] == ["equal_where_compared", "within"]
    assert comparison.findings[1].values["differ_step"] == 3


def test_equal_runs_of_which_two_never_meet(tmp_path):
    whole = _gradients()
    runs = {"a": (0, whole[:3]), "b": (0, whole[4:]), "c": (0, whole)}
    comparison = _compare(tmp_path, runs, steps={"b": range(4, STEPS)})
    assert _kinds(comparison)[:2] == ["equal_where_compared", "not_compared"]


def test_equal_runs_of_which_one_ends_early(tmp_path):
    runs = {"a": (0, _gradients()), "b": (0, _gradients()[:3])}
    comparison = _compare(tmp_path, runs)
    assert _kinds(comparison) == ["all_equal", "equal"]
    assert "at every step that both have" in comparison.verdict[0]
    assert comparison.verdict[-1].endswith("b ends at step 2.")
    assert comparison.answer == "The runs do not differ in any bit recorded."


@pytest.mark.parametrize("broken", [True, False])
def test_repeats_that_cannot_be_compared_count_as_none(tmp_path, broken):
    """One is not finite, or went on under another name."""
    whole = _gradients(0)
    runs = {"a": (0, whole), "b": (0, _until(0)), "c": (1, _gradients(1))}
    steps = None
    if not broken:
        runs.update(a=(0, whole[:4]), b=(0, whole[4:]))
        steps = {"b": range(4, STEPS)}
    comparison = _compare(tmp_path, runs, steps=steps)
    assert comparison.repeated == 0
    assert _kinds(comparison)[:2] == ["seeds", "not_compared"]
    assert "Repeats of a seed share no step" in comparison.verdict[1]
    assert any("count as not repeated" in note for note in comparison.notes)


def test_seeds_that_never_meet(tmp_path):
    runs = _seeds(0, 0, 1, 1, noise=1e-2)
    steps = {name: range(9 * s, 9 * s + STEPS) for name, (s, _) in runs.items()}
    comparison = _compare(tmp_path, runs, steps=steps)
    assert np.isnan(comparison.data["variance"]).all()
    first, second, *_ = comparison.findings
    assert (first.kind, second.kinds) == ("not_compared", ("repeats",))
    expected = 1e-2 * np.sqrt(2 / 364)
    assert second.values["repeats"] == pytest.approx(expected, rel=0.3)
    assert comparison.answer.endswith("too few runs share a step.")


def test_a_seed_that_ends_early_leaves_gaps_in_what_is_drawn(tmp_path):
    runs = _seeds(0, 0, 1, noise=1e-2)
    runs["run 2"] = 1, _gradients(1)[:2]
    comparison = _compare(tmp_path, runs)
    assert "± –" in str(comparison)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    comparison.plot().canvas.draw()
    pyplot.close("all")


def test_what_is_left_out_is_counted(tmp_path):
    runs = {f"op{k // 2} {k}": (k // 2, _gradients(k // 2)) for k in range(10)}
    newest = {name: runs.pop(name) for name in ("op4 8", "op4 9")}
    assert len(_compare(tmp_path, runs, by="op").groups) == 6
    comparison = _compare(tmp_path, newest, by="op")
    assert comparison.verdict[6] == "4 more groups: see `comparison.groups`."


def _changed(*seeds, first=0, times=1.0, plus=0.0, noise=1e-6):
    """Seeds, of which the second run is another one from a step on."""
    runs = _seeds(*seeds, noise=noise)
    gradients = runs["run 1"][1]
    gradients[first:] = times * gradients[first:] + plus
    return runs


OF_SEEDS = "repeats differ by less than seeds, and no run stands out"
FAR = f"{MORE}: run 1 stands out from the others.$"
#: Runs, the answer.
ANSWERS = [
    (_seeds(0, 1, 2, 3), f"{NORMAL}: no seed stands out.$"),
    (
        _seeds(0, 0, 1, 2),
        f"{NORMAL}: repeats are equal in every bit, and no seed stands out.$",
    ),
    (_seeds(0, 0, 1, 2, noise=1e-6), f"{NORMAL}: {OF_SEEDS}.$"),
    (_changed(0, 1, 2, 3, 4, plus=40.0), FAR),
    (_changed(0, 0, 0, first=3, plus=40.0), FAR),
    # What cannot be known.
    (_seeds(0, 1), f"{UNKNOWN}.*two runs have no reference"),
    (
        {k: (0, np.zeros((STEPS, made_up.SIZE))) for k in "ab"},
        f"{UNKNOWN}.*too few runs share",
    ),
    (_seeds(0, 0, noise=1.0), f"{UNKNOWN}.*no other seed shows how far"),
    (
        _changed(0, 0, first=3, times=1.5, noise=0.0),
        ".*diverge at step 3, while nondeterminism begins with",
    ),
]


@pytest.mark.parametrize(("runs", "answer"), ANSWERS)
def test_the_answer_tells_what_is_normal(tmp_path, runs, answer):
    assert re.match(answer, _compare(tmp_path, runs).answer)
