"""Findings, above all of runs that are broken, end early or never meet."""

import dataclasses
import inspect

import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.runs import findings
from keras_pergrad.runs.effects import Effect
from tests.runs import made_up

STEPS = 8


def _compare(log_dir, runs, by=None, steps=None, **arguments):
    """Runs as name → (seed, gradients)."""
    for name, (seed, gradients) in runs.items():
        made_up.write(
            log_dir,
            name,
            gradients,
            steps=(steps or {}).get(name),
            seed=seed,
            device=name.split()[0] if " " in name else "CPU",
            variance=50.0,
        )
    comparison = kpg.compare_runs(log_dir, by=by, **arguments)
    assert "nan" not in str(comparison)
    assert "nan" not in comparison._repr_html_().replace("nance", "")
    return comparison


def kinds(comparison):
    """The kind of each finding, of those that are of all runs."""
    of_batches = "sampling", "sampling_of_one_seed"
    return [f.kind for f in comparison.findings if f.kind not in of_batches]


def _gradients(seed=0, steps=STEPS):
    return made_up.around(1.0, 8.0, steps, seed)


def test_a_group_that_is_not_finite_is_not_called_alike(tmp_path):
    path = _gradients()
    runs = {
        f"{device} {k}": (0, path * factor + made_up.around(0, 1e-3, STEPS, k))
        for device, factor in (("CPU", 1), ("METAL", np.nan))
        for k in range(2)
    }
    comparison = _compare(tmp_path, runs, by="device")
    first, *_ = comparison.findings
    assert first.kind == "groups_not_compared"
    assert "CPU and METAL could not be compared" in str(first)
    (broken,) = [f for f in comparison.findings if f.kind == "not_finite"]
    expected = ["METAL 0 (from step 0)", "METAL 1 (from step 0)"]
    assert broken.values["runs"] == expected
    assert expected[1] in comparison.verdict[2]


def test_a_group_that_stops_being_finite_is_named(tmp_path):
    runs = {
        f"{device} {k}": (0, _gradients() + made_up.around(0, 1e-3, STEPS, k))
        for device in ("CPU", "METAL")
        for k in range(2)
    }
    runs["METAL 1"][1][5:] = np.nan
    comparison = _compare(tmp_path, runs, by="device")
    assert kinds(comparison)[0] == "groups_alike"
    assert "left out: METAL 1 (from step 5)." in str(comparison)


def _until(step):
    gradients = _gradients()
    gradients[step:] = np.nan
    return gradients


@pytest.mark.parametrize(
    ("other", "step"),
    [(_until(5), 5), (np.vstack([_gradients(), [[np.inf] * 300]]), 8)],
)
def test_equal_until_one_is_not_finite(tmp_path, other, step):
    runs = {"a": (0, _gradients()), "b": (0, other)}
    comparison = _compare(tmp_path, runs)
    assert kinds(comparison)[:2] == ["equal_where_compared", "not_finite"]
    assert f"b (from step {step})" in comparison.verdict[1]


def test_equal_but_for_a_step_that_is_not_shown(tmp_path):
    other = _gradients()
    other[3, :200] *= 1 + 1e-5
    runs = {"a": (0, _gradients()), "b": (0, other)}
    comparison = _compare(tmp_path, runs, max_steps=2)
    assert comparison.apart[0, 1] == 0
    assert kinds(comparison)[:2] == ["equal_where_compared", "within"]
    assert comparison.findings[1].values["differ_step"] == 3


def test_equal_runs_of_which_two_never_meet(tmp_path):
    whole = _gradients()
    runs = {"a": (0, whole[:3]), "b": (0, whole[4:]), "c": (0, whole)}
    comparison = _compare(tmp_path, runs, steps={"b": range(4, STEPS)})
    assert kinds(comparison)[:2] == ["equal_where_compared", "never_meet"]


def test_equal_runs_of_which_one_ends_early(tmp_path):
    runs = {"a": (0, _gradients()), "b": (0, _gradients()[:3])}
    comparison = _compare(tmp_path, runs)
    assert kinds(comparison) == ["all_equal", "equal"]
    assert "at every step that both have" in comparison.verdict[0]
    assert comparison.verdict[-1].endswith("b ends at step 2.")


def test_repeats_that_are_equal_until_one_is_not_finite(tmp_path):
    """Nondeterminism is not said to be none."""
    runs = {
        "a": (0, _gradients()),
        "b": (0, _until(5)),
        "c": (1, _gradients(1)),
    }
    comparison = _compare(tmp_path, runs)
    expected = ["seeds", "repeats_equal_where_compared", "not_finite"]
    assert kinds(comparison)[:3] == expected


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
    assert kinds(comparison)[:2] == ["seeds", "repeats_not_compared"]
    assert any("count as not repeated" in note for note in comparison.notes)
    if not broken:
        assert "no_common_step" in kinds(comparison)
        assert "<td>–</td>" in comparison._repr_html_()


@pytest.mark.parametrize("nondeterminism", [0, 1e-2])
def test_seeds_that_never_meet(tmp_path, nondeterminism):
    runs, steps = {}, {}
    for seed in range(2):
        for k in range(2):
            noise = made_up.around(0, nondeterminism, STEPS, [seed, k])
            runs[f"{seed} {k}"] = seed, _gradients(seed) + noise
            steps[f"{seed} {k}"] = range(9 * seed, 9 * seed + STEPS)
    for name, (seed, gradients) in runs.items():
        made_up.write(
            tmp_path,
            name,
            gradients,
            steps=steps[name],
            seed=seed,
            device="CPU",
        )
    comparison = kpg.compare_runs(tmp_path)
    assert np.isnan(comparison.data["variance"]).all()
    first, second, *_ = comparison.findings
    if nondeterminism:
        assert first.kind == "seeds_not_compared"
        assert second.kind == "repeats_alone"
        expected = 1e-2 * np.sqrt(2 / 364)
        assert second.values["repeats"] == pytest.approx(expected, rel=0.3)
    else:
        assert first.kind == "equal_where_compared"
        assert second.kind == "never_meet"


def test_a_seed_that_ends_early_leaves_gaps_not_repeats(tmp_path):
    runs = {
        "a": (0, _gradients()),
        "b": (0, _gradients() + made_up.around(0, 1e-2, STEPS, 9)),
        "c": (1, _gradients(1)[:2]),
    }
    comparison = _compare(tmp_path, runs)
    for name in ("variance", "distance", "cosine", "norm_sd", "sampling_share"):
        values = comparison.data[name]
        assert np.isfinite(values[:2]).all(), name
        assert np.isnan(values[2:]).all(), name
    assert np.isfinite(comparison.data["norm"]).all()
    assert "± –" in str(comparison)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    comparison.plot().canvas.draw()
    pyplot.close("all")


def test_repeats_do_not_dilute_the_norm(tmp_path):
    """Eight repeats of a seed and two others: three draws."""
    norms = []
    for seed in range(3):
        gradient = made_up.around(0.0, 8.0 * (seed + 1), 1, seed)
        norms.append(np.linalg.norm(gradient))
        for k in range(8 if seed == 0 else 1):
            made_up.write(tmp_path, f"{seed} {k}", gradient, seed=seed)
    comparison = kpg.compare_runs(tmp_path)
    data = comparison.data
    assert data["norm"][0] == pytest.approx(np.mean(norms))
    assert data["norm_sd"][0] == pytest.approx(np.std(norms, ddof=1))


EFFECT = Effect(
    "A", "B", (2, 2), 0.1, "repeats", 0.025, 4.0, 0.0004, True, False
)
EFFECTS = {
    "groups_differ": {},
    "groups_alike": {"ratio": 1.1, "probability": 0.3},
    "groups_differ_from_equal": {"floor": 0.0, "ratio": np.inf},
    "groups_equal": {"floor": 0.0, "distance": 0.0, "ratio": 1.0},
    "groups_confounded": {"confounded": True, "yardstick": None},
    "groups_without_yardstick": {"yardstick": None},
    "groups_not_compared": {"distance": np.nan},
    "groups_undecided": {"probability": None},
}


@pytest.mark.parametrize("kind", EFFECTS)
def test_an_effect_in_every_case(kind):
    effect = dataclasses.replace(EFFECT, **EFFECTS[kind])
    found = findings._group(effect)
    assert found.kinds == (kind,)
    assert "A and B" in str(found)
    effect = dataclasses.replace(effect, besides=["machine", "loss"])
    assert str(findings._group(effect)).endswith("in machine and loss.")


def test_an_effect_without_a_floor_is_not_compared():
    effect = dataclasses.replace(EFFECT, floor=np.nan)
    assert findings._group(effect).kind == "groups_not_compared"


def test_every_text_is_said_of_something():
    """A template that no finding has would be dead."""
    source = inspect.getsource(findings)
    for kind in findings.TEXTS:
        assert source.count(f'"{kind}"') > 1, kind


def test_shares_and_lists():
    shares = {0.0: "0", 4e-7: "4e-07", 0.025: "2.5 %", 1.38: "138 %"}
    for value, text in shares.items():
        assert findings.share(value) == text
    assert findings.share(np.nan) == "–"
    assert findings.listed("abc") == "a, b and c"
    assert findings.listed("abcdefg") == "a, b, c, d, e and 2 more"
