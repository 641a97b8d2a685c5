import dataclasses
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.__main__ import main
from tests.runs import made_up


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """Five seeds, one of them three times, with some nondeterminism."""
    log_dir = tmp_path_factory.mktemp("runs")
    made_up.seeds_and_repeats(log_dir, nondeterminism=0.8)
    return log_dir


@pytest.fixture(scope="module")
def comparison(log_dir):
    return kpg.compare_runs(log_dir)


def test_seeds_and_nondeterminism_are_separated(comparison):
    data = comparison.data
    # The truth is 8² + 0.8² and 0.8²; the sketch adds about 6 % here.
    np.testing.assert_allclose(data["variance"], 64.64, rtol=0.25)
    np.testing.assert_allclose(data["repeat_variance"], 0.64, rtol=0.3)
    assert comparison.seeds == 5
    assert comparison.repeated == 3
    (first, *_) = comparison.verdict
    assert "Runs of different seeds are apart by" in first
    share = re.search(r"nondeterminism explains ([\d.]+) % of", first)
    assert float(share[1]) == pytest.approx(1, abs=0.3)


def test_deterministic_repeats_explain_nothing(tmp_path):
    made_up.seeds_and_repeats(tmp_path)
    comparison = kpg.compare_runs(tmp_path)
    assert (comparison.data["repeat_variance"] == 0).all()
    text = " ".join(str(comparison).split())
    assert "repeats of a seed are equal in every bit recorded" in text
    assert "The 3 runs of seed 0 are equal at every step, in every" in text


def test_a_seed_that_was_not_set_again_is_suspected(tmp_path):
    for k in range(4):
        gradients = made_up.around(1, 8, 4, k)
        made_up.write(tmp_path, f"{k}", gradients, seed=k // 2)
    (first, *_) = kpg.compare_runs(tmp_path).verdict
    assert "as if the seed had not been set again before each run" in first


def test_sampling_share(comparison):
    """Variance 640 in a batch of 32 is 20 for its mean; runs have 64.6."""
    data = comparison.data
    np.testing.assert_allclose(data["sampling_variance"], 20)
    expected = 20 / data["variance"]
    np.testing.assert_allclose(data["sampling_share"], expected)
    assert (data["sampling_ratio"] < 1).all()
    share = f"{100 * np.median(data['sampling_share']):.0f} % of that between"
    text = " ".join(comparison.verdict)
    assert f"the variance of such draws is {share} runs (median), a yar" in text


def test_what_was_not_measured_is_absent(tmp_path):
    for seed in range(2):
        made_up.write(tmp_path, f"{seed}", made_up.around(1, 5, 3, seed))
    comparison = kpg.compare_runs(tmp_path)
    assert np.isnan(comparison.data["sampling_share"]).all()
    assert np.isnan(comparison.data["repeat_variance"]).all()
    text = " ".join(str(comparison).split())
    assert "the variance of such draws" not in text
    assert "unknown seeds" in text
    assert "cannot be told apart: train one seed twice" in text
    assert "2 runs have no known seed" in text


@pytest.mark.parametrize("nondeterminism", [0.0, 1e-6, 0.5])
def test_repeats_alone(tmp_path, nondeterminism):
    path = made_up.around(1, 5, 4, 0)
    for k in range(3):
        noise = made_up.around(0, nondeterminism, 4, k + 1)
        made_up.write(tmp_path, f"{k}", path + noise, seed=3, variance=9.0)
    comparison = kpg.compare_runs(tmp_path)
    text = " ".join(str(comparison).split())
    if nondeterminism == 0:
        assert "The 3 runs have the same gradients at every step" in text
    else:
        assert "The 3 runs repeat one seed, and yet are apart by" in text
        assert "times as far as these runs" in text
    assert ("stay within 0.001" in text) == (nondeterminism == 1e-6)


def _with_a_fault(log_dir):
    """CPU and METAL, three seeds, three repeats; one run goes wrong."""
    for device in ("CPU", "METAL"):
        for seed in range(3):
            path = made_up.around(1.0, 8.0, 9, seed)
            path[:, :50] += 0.06 * (device == "METAL")
            for k in range(3):
                run = path + made_up.around(0, 1e-2, 9, [seed, k])
                if (device, seed, k) == ("CPU", 1, 2):
                    run[7, 210:] += 0.2
                made_up.write(
                    log_dir,
                    f"{device} {seed} {k}",
                    run,
                    seed=seed,
                    device=device,
                    machine=device,
                )


def test_groups_and_a_fault_in_words(tmp_path):
    _with_a_fault(tmp_path)
    comparison = kpg.compare_runs(tmp_path, by="device", tolerance=5e-3)
    text = " ".join(str(comparison).split())
    (effect,) = comparison.groups
    assert effect.real
    assert f"CPU and METAL differ by {effect.ratio:.2g} times what rep" in text
    assert "They differ in machine, too." in text
    found = "The 3 runs of seed 1, CPU part at step 7 (within 0.005 before)"
    assert f"{found}, first in last/kernel, by " in text
    assert "CPU 1 2 is the odd one" in text
    html = comparison._repr_html_()
    assert "Groups by device" in html
    assert "CPU – METAL" in html


def test_no_difference_beyond_seed_noise_in_words(tmp_path):
    for device in ("CPU", "GPU"):
        for seed in range(5):
            gradients = made_up.around(1, 8, 4, [seed, len(device)])
            made_up.write(
                tmp_path,
                f"{device}{seed}",
                gradients,
                seed=seed + 10 * len(device),
                tags={"where": device},
            )
    text = str(kpg.compare_runs(tmp_path, by="where"))
    assert "CPU and GPU: no difference beyond seed noise (" in text


def test_one_group_is_none(log_dir):
    comparison = kpg.compare_runs(log_dir, by="device")
    assert comparison.groups == []
    assert "All runs have device 'CPU': no groups to compare." in str(
        comparison
    )


def test_an_effect_in_every_case():
    from keras_pergrad.runs.effect_words import effect
    from keras_pergrad.runs.effects import Effect

    base = Effect(
        "A", "B", (2, 2), 0.1, "repeats", 0.025, 4.0, 0.0004, True, False
    )
    said = {
        "A and B differ by 4 times what repeats differ by at equal seeds, "
        "p < 0.001.": {},
        "A and B: no difference beyond nondeterminism (1.1 times what "
        "repeats differ by at equal seeds, p = 0.3).": {
            "ratio": 1.1,
            "probability": 0.3,
        },
        "A and B are 10 % of the gradient's norm apart at equal seeds, where "
        "repeats are equal in every bit.": {"floor": 0.0, "ratio": np.inf},
        "A and B have the same gradients at equal seeds, in every bit "
        "recorded.": {
            "floor": 0.0,
            "distance": 0.0,
            "ratio": 1.0,
        },
        "A and B are 10 % of the gradient's norm apart, but no two runs "
        "differ in the group alone: train the same seed in both groups, "
        "twice in one of them.": {"confounded": True, "yardstick": None},
        "A and B are 10 % of the gradient's norm apart at equal seeds; train "
        "a seed twice in one group to know what is normal.": {
            "yardstick": None
        },
        "A and B could not be compared: at no step that a run of each has "
        "are both gradients finite and not zero.": {"distance": np.nan},
        "A and B could not be compared: at no step that two repeats have are "
        "both gradients finite and not zero.": {"floor": np.nan},
        "A and B are 10 % of the gradient's norm apart at equal seeds, 4 "
        "times what repeats differ by; how likely that is by chance is not "
        "known, since not every two runs share a step.": {"probability": None},
    }
    for sentence, changes in said.items():
        assert effect(dataclasses.replace(base, **changes)) == sentence
    alike = dataclasses.replace(base, ratio=1.1, probability=0.3)
    assert effect(alike, broken=["x", "y"]) == (
        "A and B, where finite: no difference beyond nondeterminism (1.1 "
        "times what repeats differ by at equal seeds, p = 0.3). Not finite: x "
        "and y."
    )


def test_moments_of_two_machines_merge(log_dir, tmp_path, comparison):
    """Joined by directory, or by the moments alone: the same."""
    for seed in (8, 9):
        gradients = made_up.around(1, 8, 6, seed)
        made_up.write(tmp_path, f"{seed}", gradients, seed=seed)
    there = kpg.compare_runs(tmp_path).moments["gradient_norm"]
    merged = comparison.moments["gradient_norm"].merge(there)
    joined = kpg.compare_runs([log_dir, tmp_path])
    norms = joined.moments["gradient_norm"]
    np.testing.assert_allclose(merged.mean, norms.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.variance, norms.variance, rtol=1e-9)
    assert len(joined.runs) == 9


def test_a_broken_run_is_named(tmp_path):
    for seed in range(3):
        gradients = made_up.around(1, 8, 5, seed)
        gradients[3:] *= np.nan if seed == 1 else 1
        made_up.write(tmp_path, f"run {seed}", gradients[: 5 - seed], seed=seed)
    comparison = kpg.compare_runs(tmp_path)
    text = " ".join(str(comparison).split())
    assert "Run run 1 has a gradient that is not finite, first at step 3" in (
        text
    )
    assert "Not every run has every step: fewer in run 2" in text
    np.testing.assert_array_equal(comparison.data["runs"], [3, 3, 3, 2])
    assert np.isnan(comparison.data["variance"][3])
    assert "–" in comparison._repr_html_()


def test_zero_gradients_have_no_direction(tmp_path):
    for seed in range(2):
        made_up.write(tmp_path, f"{seed}", np.zeros((3, 300)), seed=seed)
    comparison = kpg.compare_runs(tmp_path)
    said = "At no common step is a gradient finite and not zero"
    assert said in str(comparison)
    assert "<svg" in comparison._repr_html_()
    comparison.plot()


def test_arguments_are_checked(log_dir):
    with pytest.raises(ValueError, match=r"`tolerance` .*tolerance=-1"):
        kpg.compare_runs(log_dir, tolerance=-1)
    with pytest.raises(ValueError, match=r"`max_steps` .*max_steps=0"):
        kpg.compare_runs(log_dir, max_steps=0)
    with pytest.raises(ValueError, match=r"\(repeat\) or one of device"):
        kpg.compare_runs(log_dir, by="divice")


def test_plot(comparison):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = comparison.plot()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[0] == "Gradient norm"
    assert len(titles) == 4
    _, axes = pyplot.subplots(1, 4)
    assert comparison.plot(axes) is axes[0].figure
    with pytest.raises(ValueError, match=r"four .* Received: 1"):
        comparison.plot(axes[:1])
    figure.canvas.draw()
    pyplot.close("all")


def test_plot_says_what_it_needs(comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'keras-pergrad\[plot"):
        comparison.plot()


def test_command(log_dir, tmp_path, capsys):
    page = tmp_path / "runs.html"
    assert main(["compare", str(log_dir), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "7 runs of 5 seeds, 6 steps" in out
    assert f"Written: {page}" in out
    assert page.read_text().startswith("<!DOCTYPE html>")
    arguments = ["compare", str(log_dir), "--by", "seed", "--tolerance", "2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "times what repeats differ by" in out
    assert "stay within 2 of each other" in out


def test_command_says_what_is_wrong(log_dir, tmp_path, capsys):
    for arguments, said in (
        ([str(tmp_path)], "with 0 runs and no record"),
        ([str(tmp_path / "none")], "is not a directory"),
        ([str(log_dir), "--by", "x"], "`by` expected"),
        ([str(log_dir), "--html", str(tmp_path)], "directory"),
    ):
        assert main(["compare", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_command_needs_no_tensorflow(log_dir):
    """It runs on the laptop that the records were copied to."""
    done = subprocess.run(
        [
            *[sys.executable, "-X", "importtime"],
            *["-m", "keras_pergrad", "compare", str(log_dir)],
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Runs of different seeds" in done.stdout
    imported = {line.split("|")[-1].strip() for line in done.stderr.split("\n")}
    assert "numpy" in imported
    assert not imported & {"tensorflow", "keras", "matplotlib"}


def test_a_run_that_is_being_written_is_read_past(tmp_path):
    for seed in range(2):
        made_up.write(
            tmp_path, f"{seed}", made_up.around(1, 5, 3, seed), seed=seed
        )
    with open(tmp_path / "1" / "records.jsonl", "ab") as file:
        file.write(b'{"step": 3, "ep')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comparison = kpg.compare_runs(tmp_path)
    np.testing.assert_array_equal(comparison.data["step"], [0, 1, 2])
