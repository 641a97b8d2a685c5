"""What is said of runs that are not finite, end early or share no step."""

import numpy as np
import pytest

import keras_pergrad as kpg
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
    assert "nan" not in " ".join(comparison.verdict)
    assert "nan" not in comparison._repr_html_()
    return comparison, " ".join(str(comparison).split())


def _gradients(seed=0, steps=STEPS):
    return made_up.around(1.0, 8.0, steps, seed)


def test_a_group_that_is_not_finite_is_not_called_alike(tmp_path):
    path = _gradients()
    runs = {
        f"{device} {k}": (0, path * factor + made_up.around(0, 1e-3, STEPS, k))
        for device, factor in (("CPU", 1), ("METAL", np.nan))
        for k in range(2)
    }
    comparison, text = _compare(tmp_path, runs, by="device")
    assert comparison.verdict[0] == (
        "CPU and METAL could not be compared: at no step that a run of each "
        "has are both gradients finite and not zero. Not finite: METAL 0 and "
        "METAL 1."
    )
    assert "no difference" not in text
    assert "of the gradient's norm (where finite)." in text
    assert "in every bit recorded; not finite: METAL 0 and METAL 1." in text


def test_a_group_that_stops_being_finite_is_named(tmp_path):
    runs = {
        f"{device} {k}": (0, _gradients() + made_up.around(0, 1e-3, STEPS, k))
        for device in ("CPU", "METAL")
        for k in range(2)
    }
    runs["METAL 1"][1][5:] = np.nan
    comparison, _ = _compare(tmp_path, runs, by="device")
    assert comparison.verdict[0].startswith("CPU and METAL, where finite")
    assert comparison.verdict[0].endswith("Not finite: METAL 1.")


def _until(step):
    gradients = _gradients()
    gradients[step:] = np.nan
    return gradients


EVERYWHERE = "have the same gradients at every step"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (_until(5), "the gradient of b is not finite (first at step 5)."),
        (np.vstack([_gradients(), [[np.inf] * 300]]), "(first at step 8)."),
    ],
)
def test_equal_until_one_is_not_finite(tmp_path, other, said):
    runs = {"a": (0, _gradients()), "b": (0, other)}
    comparison, _ = _compare(tmp_path, runs)
    assert comparison.verdict[0].startswith(
        "Where the 2 runs were compared, their gradients are the same "
        "in every bit recorded; but "
    )
    assert comparison.verdict[0].endswith(said)


def test_equal_but_for_a_step_that_is_not_shown(tmp_path):
    other = _gradients()
    other[3, :200] *= 1 + 1e-5
    runs = {"a": (0, _gradients()), "b": (0, other)}
    comparison, _ = _compare(tmp_path, runs, max_steps=2)
    assert comparison.apart[0, 1] == 0
    said = "in every bit recorded; but at step 3 two of them differ."
    assert comparison.verdict[0].endswith(said)


def test_equal_runs_of_which_two_never_meet(tmp_path):
    whole = _gradients()
    runs = {"a": (0, whole[:3]), "b": (0, whole[4:]), "c": (0, whole)}
    steps = {"b": range(4, STEPS)}
    comparison, text = _compare(tmp_path, runs, steps=steps)
    assert EVERYWHERE not in text
    assert "but not every two of them share a step" in comparison.verdict[0]


def test_equal_runs_of_which_one_ends_early(tmp_path):
    runs = {"a": (0, _gradients()), "b": (0, _gradients()[:3])}
    comparison, _ = _compare(tmp_path, runs)
    assert comparison.verdict == [
        f"The 2 runs {EVERYWHERE} that both have, in every bit recorded.",
        "The 2 runs of seed 0 are equal at every step that both have, in every "
        "bit recorded; b ends at step 2.",
    ]


def test_repeats_that_are_equal_until_one_is_not_finite(tmp_path):
    """Nondeterminism is not said to be none."""
    runs = {
        "a": (0, _gradients()),
        "b": (0, _until(5)),
        "c": (1, _gradients(1)),
    }
    comparison, text = _compare(tmp_path, runs)
    assert "nondeterminism none" not in text
    assert comparison.verdict[0].endswith(
        "where repeats of a seed were compared, they are equal in every bit "
        "recorded, but the gradient of b is not finite (first at step 5)."
    )


@pytest.mark.parametrize("broken", [True, False])
def test_repeats_that_cannot_be_compared_count_as_none(tmp_path, broken):
    """One is not finite, or went on under another name."""
    whole = _gradients(0)
    runs = {"a": (0, whole), "b": (0, _until(0)), "c": (1, _gradients(1))}
    steps = None
    if not broken:
        runs.update(a=(0, whole[:4]), b=(0, whole[4:]))
        steps = {"b": range(4, STEPS)}
    comparison, text = _compare(tmp_path, runs, steps=steps)
    assert comparison.repeated == 0
    said = "No two repeats of a seed could be compared, so what is the seed"
    assert said in comparison.verdict[0]
    assert "* Runs that repeat each other share no step" in text
    if not broken:
        assert "The 2 runs of seed 0 have no step in common" in text
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
    first = comparison.verdict[0]
    if nondeterminism:
        assert "share no step at which gradients are finite and not zero; " in (
            first
        )
        assert "repeats of a seed are apart by 7e-04." in first
    else:
        assert "but not every two of them share a step" in first


def test_a_seed_that_ends_early_leaves_gaps_not_repeats(tmp_path):
    runs = {
        "a": (0, _gradients()),
        "b": (0, _gradients() + made_up.around(0, 1e-2, STEPS, 9)),
        "c": (1, _gradients(1)[:2]),
    }
    comparison, text = _compare(tmp_path, runs)
    for name in ("variance", "distance", "cosine", "norm_sd", "sampling_share"):
        values = comparison.data[name]
        assert np.isfinite(values[:2]).all(), name
        assert np.isnan(values[2:]).all(), name
    assert np.isfinite(comparison.data["norm"]).all()
    assert "± –" in text
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
    # What merges with those of another machine stays run by run.
    assert comparison.moments["gradient_norm"].count[0] == 10
