import re
import subprocess
import sys

import numpy as np
import pytest

from keras_pergrad.__main__ import main
from keras_pergrad.diagnose import compare_runs
from tests.runs import made_up


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """Five seeds, one of them three times, with some nondeterminism."""
    log_dir = tmp_path_factory.mktemp("runs")
    made_up.seeds_and_repeats(log_dir, nondeterminism=0.8)
    return log_dir


@pytest.fixture(scope="module")
def comparison(log_dir):
    return compare_runs(log_dir)


def test_seeds_and_nondeterminism_are_separated(comparison):
    data = comparison.data
    # The truth is 8² + 0.8² and 0.8²; the sketch adds about 6 % here.
    np.testing.assert_allclose(data["variance"], 64.64, rtol=0.25)
    np.testing.assert_allclose(data["repeat_variance"], 0.64, rtol=0.3)
    assert comparison.seeds == 5
    assert comparison.repeated == 3
    first, second, *_ = comparison.findings
    assert (first.kind, second.kind) == ("seeds", "repeats")
    assert second.values["explained"] == pytest.approx(0.01, abs=0.003)
    assert "Nondeterminism explains 0" in comparison.verdict[1]


def test_deterministic_repeats_explain_nothing(tmp_path):
    made_up.seeds_and_repeats(tmp_path)
    comparison = compare_runs(tmp_path)
    assert (comparison.data["repeat_variance"] == 0).all()
    kinds = ["seeds", "repeats_equal", "sampling", "equal"]
    assert made_up.kinds(comparison) == kinds
    assert "nondeterminism none" in comparison.verdict[1]
    assert "The 3 runs of seed 0 are equal at every" in comparison.verdict[3]


def test_a_seed_that_was_not_set_again_is_suspected(tmp_path):
    for k in range(4):
        gradients = made_up.around(1, 8, 4, seed=k)
        made_up.write(tmp_path, f"{k}", gradients, seed=k // 2)
    assert made_up.kinds(compare_runs(tmp_path))[1] == "repeats_not_repeated"


def test_sampling_share(comparison):
    """Variance 640 in a batch of 32 is 20 for its mean; runs have 64.6."""
    data = comparison.data
    np.testing.assert_allclose(data["sampling_variance"], 20)
    expected = 20 / data["variance"]
    np.testing.assert_allclose(data["sampling_share"], expected)
    assert (data["sampling_ratio"] < 1).all()
    (found,) = [f for f in comparison.findings if f.kind == "sampling"]
    assert found.values["ratio"] == np.median(data["sampling_ratio"])
    assert f"{100 * found.values['ratio']:.0f} %" in str(found)


def test_what_was_not_measured_is_absent(tmp_path):
    made_up.write_seeds(tmp_path, 2, 3, seed=None)
    comparison = compare_runs(tmp_path)
    assert np.isnan(comparison.data["sampling_share"]).all()
    assert np.isnan(comparison.data["repeat_variance"]).all()
    assert made_up.kinds(comparison) == ["seeds", "no_repeats"]
    assert "unknown seeds" in comparison.verdict[0]
    assert any("2 runs have no known seed" in n for n in comparison.notes)
    assert comparison.noise_scales == []
    assert "oise scale" not in str(comparison)


@pytest.mark.parametrize(
    ("nondeterminism", "kinds"),
    [
        (0.0, ["all_equal", "equal"]),
        (1e-6, ["repeats_differ", "within"]),
        (0.5, ["repeats_differ", "differ_from_start"]),
    ],
)
def test_repeats_alone(tmp_path, nondeterminism, kinds):
    path = made_up.around(1, 5, 4, seed=0)
    for k in range(3):
        noise = made_up.around(0, nondeterminism, 4, seed=k + 1)
        made_up.write(tmp_path, f"{k}", path + noise, seed=3, variance=9.0)
    assert made_up.kinds(compare_runs(tmp_path)) == kinds


def test_groups_and_a_fault_are_found(tmp_path):
    """CPU and METAL, three seeds, three repeats; one run goes wrong."""
    for device in ("CPU", "METAL"):
        for seed in range(3):
            path = made_up.around(1.0, 8.0, 9, seed=seed)
            path[:, :50] += 0.06 * (device == "METAL")
            for k in range(3):
                run = path + made_up.around(0, 1e-2, 9, seed=[seed, k])
                if (device, seed, k) == ("CPU", 1, 2):
                    run[7, 210:] += 0.2
                about = {"seed": seed, "device": device, "machine": device}
                made_up.write(tmp_path, f"{device} {seed} {k}", run, **about)
    comparison = compare_runs(tmp_path, by="device", tolerance=5e-3)
    (effect,) = comparison.groups
    assert effect.real
    first, *_ = comparison.findings
    assert first.kinds == ("groups_differ", "confounders")
    assert first.values["confounders"] == ["machine"]
    (found,) = [f for f in comparison.findings if f.kind == "diverge"]
    assert found.values["who"] == "The 3 runs of seed 1, CPU"
    assert found.values["step"] == 7
    assert found.values["variable"] == "last/kernel"
    assert "CPU 1 2 is the outlier" in str(found)
    html = comparison._repr_html_()
    assert "Groups by device" in html
    assert "CPU – METAL" in html


def test_one_group_is_none(log_dir):
    comparison = compare_runs(log_dir, by="device")
    assert comparison.groups == []
    said = "All runs have device 'CPU': no groups to compare."
    assert said in str(comparison)


def test_the_table_says_that_rows_are_left_out(tmp_path):
    made_up.write_seeds(tmp_path, 2, 60)
    comparison = compare_runs(tmp_path)
    assert "12 of 60 steps" in str(comparison)
    assert "40 of 60 steps" in comparison._repr_html_()
    fewer = compare_runs(tmp_path, max_steps=12)
    assert "of 60 steps" not in str(fewer)


def test_zero_gradients_have_no_direction(tmp_path):
    for seed in range(2):
        made_up.write(tmp_path, f"{seed}", np.zeros((3, 300)), seed=seed)
    comparison = compare_runs(tmp_path)
    assert made_up.kinds(comparison) == ["not_compared", "equal"]
    assert "data:image/svg" in comparison._repr_html_()
    comparison.plot()


def test_arguments_are_checked(log_dir):
    both = re.escape(f"compare_runs([{str(log_dir)!r}, {str(log_dir)!r}])")
    for arguments, message in (
        ({"tolerance": -1}, "`tolerance` .*tolerance=-1"),
        ({"max_steps": 0}, "`max_steps` .*max_steps=0"),
        ({"by": "divice"}, r"one of 'repeat', .*'divice'\. .* 'device'\?"),
        ({"by": log_dir}, f"a directory.*{both}"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_runs(log_dir, **arguments)


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


def test_without_scipy_all_but_interval_and_p_are_there(
    log_dir, comparison, monkeypatch
):
    tested = compare_runs(log_dir, by="repeat")
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    found = compare_runs(log_dir, by="repeat")
    for name, values in tested.data.items():
        if name in ("variance_low", "variance_high"):
            assert np.isnan(found.data[name]).all()
        else:
            np.testing.assert_array_equal(found.data[name], values)
    assert "need SciPy: pip install" in " ".join(found.notes)
    assert not any("SciPy" in note for note in tested.notes)
    assert any(effect.untested for effect in found.groups)
    assert "groups_untested" in made_up.kinds(found)
    assert "SciPy" in found.answer
    for one, other in zip(found.groups, tested.groups, strict=True):
        assert one.ratio == other.ratio or np.isnan(one.ratio)


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
    assert "what repeats differ by" in out
    assert "within 2 of each other" in out


def test_command_says_what_is_wrong(log_dir, tmp_path, capsys):
    for arguments, said in (
        ([str(tmp_path)], "with 0 runs and no record"),
        ([str(tmp_path / "none")], "is not a directory"),
        ([str(log_dir), "--by", "x"], "`by` expected one of"),
        ([str(log_dir), "--html", str(tmp_path)], "directory"),
    ):
        assert main(["compare", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_command_needs_no_tensorflow(log_dir):
    """It runs on the laptop that the records were copied to."""
    command = [sys.executable, "-X", "importtime", "-m", "keras_pergrad"]
    command += ["compare", str(log_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Runs of different seeds" in done.stdout
    imported = {line.split("|")[-1].strip() for line in done.stderr.split("\n")}
    assert "numpy" in imported
    assert not imported & {"tensorflow", "keras", "matplotlib"}
