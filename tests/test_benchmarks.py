"""What the benchmarks state, as far as no measurement is needed."""

import csv
import re

import numpy as np
import pytest

import keras_pergrad as kpg
from benchmarks.harness import large_models, results, tables
from benchmarks.harness.interleaved import Entry
from benchmarks.harness.models import STANDARD, make_batch, make_weights
from benchmarks.harness.process import ROOT
from benchmarks.steps import (
    gpu,
    op_matrix,
    rates,
    real_models,
    report,
    targets,
)
from benchmarks.steps.per_sample import main
from keras_pergrad.factors import convolution_costs
from keras_pergrad.factors import rates as factor_rates
from tests.real_models import MODELS

PARAMETERS = {
    "logreg": 105,
    "ffnn": 39_760,
    "mnist": 26_010,
    "cifar10": 605_226,
    "embed": 160_098,
    "lstm": 1_081_002,
    "transformer": 1_036_802,
}


@pytest.mark.parametrize("name", STANDARD)
def test_models_are_those_of_the_table(name):
    from benchmarks.harness.keras_models import build_model

    assert STANDARD[name].parameters == PARAMETERS[name]
    model = build_model(name)
    assert model.count_params() == PARAMETERS[name]
    x, y = make_batch(name, 2)
    assert model(x).shape == (2, STANDARD[name].outputs)
    assert y.max() < STANDARD[name].classes
    for ours, theirs in zip(make_weights(name), model.get_weights()):
        assert (ours == theirs).all()


def entry(rival, times, norms=(1.0, 2.0)):
    found = Entry(rival, "mnist", "clipped", batch=64)
    found.times, found.norms = times, list(norms)
    return found


def test_ratios_are_taken_round_by_round():
    found = results.summarise(
        [
            entry("plain", [1.0, 2.0, 4.0]),
            entry("ours", [2.0, 4.0, 8.0]),
            entry("loop", [3.0, None, 3.0], (1.0, 3.0)),
        ],
        "plain@64",
    )
    assert found["ours@64"]["ratio"] == [2.0, 2.0, 2.0]
    assert found["ours@64"]["difference"] == 0
    assert found["loop@64"]["ms"] == [3.0, 3.0, 3.0]
    assert found["loop@64"]["ratio"] == [1.875, 1.312, 2.438]
    assert found["loop@64"]["difference"] == 0.5


def stored():
    entries = [
        entry("plain", [1.0, 1.0]),
        entry("ours", [1.2, 1.2]),
        entry("ours_bare", [1.1, 1.1]),
        entry("loop", [1.0, 1.0], (1.0, 3.0)),
    ]
    failed = entry("backpack", [])
    failed.error = "no such layer"
    return {
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "threads": 2,
            "system": "Linux",
            "versions": {"Keras": "3"},
        },
        "clipped": {"mnist": results.summarise([*entries, failed], "plain@64")},
    }


def test_report_tells_figures_gaps_and_disagreements():
    text = report.markdown(stored())
    assert "| **keras_pergrad** | 1.20 (1.20×) |" in text
    assert "| BackPACK | – |" in text
    assert "- clipped, mnist, BackPACK: no such layer" in text
    assert "TF, loop: gradients differ from ours by 5.0e-01" in text


def test_targets_say_what_is_reached():
    lines = targets.table(stored()).splitlines()
    assert "| mnist: clipped / plain | 1.25 | 1.2 | reached |" in lines
    assert lines[-1].endswith("| 1 | 1.1 | **not reached** |")


def test_tables_go_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- times -->\nold\n<!-- end of times -->\nz\n")
    tables.write("page.md#times", "new", "newer", folder=tmp_path)
    new = "<!-- times -->\n\nnew\n\nnewer\n\n<!-- end of times -->"
    assert page.read_text() == f"a\n{new}\nz\n"
    with pytest.raises(ValueError, match="has no marks <!-- rows -->"):
        tables.write("page.md#rows", "new", folder=tmp_path)


def test_pages_have_the_places_that_benchmarks_write():
    found = [
        place
        for path in (ROOT / "benchmarks").rglob("*.py")
        for place in re.findall(r'^PLACE = "(.+)"$', path.read_text(), re.M)
    ]
    assert len(found) > 5
    for place in found:
        assert tables.read(place).startswith("|"), place


def test_unknown_rival_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--rivals", "nobody"])
    assert "Received: nobody" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_writes_everything(tmp_path):
    path = tmp_path / "found.json"
    arguments = ["--sections", "clipped", "--models", "logreg"]
    arguments += ["--rivals", "plain,ours,map_fn", "--rounds", "1"]
    main([*arguments, "--batch", "3", "--output", str(path)])
    found = results.load(path)["clipped"]["logreg"]
    assert found["map_fn@3"]["difference"] < 1e-5
    assert found["ours@3"]["ratio"][0] > 0
    assert path.with_suffix(".png").stat().st_size > 0
    assert "keras_pergrad" in path.with_suffix(".md").read_text()


def real(time, memory, first):
    return {
        "plain@16": {
            "ms": [10.0, 9.0, 11.0],
            "process_mb": 1000.0,
            "peak_mb": 100.0,
            "first_ms": 1000.0,
            "first_known_ms": 500.0,
        },
        "ours@16": {
            "ms": [12.0, 9.0, 11.0],
            "ratio": [time, time, time],
            "process_mb": 1000.0 * memory,
            "peak_mb": 150.0,
            "first_ms": 1000.0 * first,
            "first_known_ms": 600.0,
        },
    }


def test_real_models_are_judged_by_their_limits():
    refused = real(1.0, 1.0, 1.0)
    refused["ours@16"] = {"error": "ValueError: it mixes samples"}
    plain = real(1.0, 1.0, 1.0)
    plain["plain@16"] = {"error": "no answer in 600 s"}
    newer = real(1.0, 1.0, 1.0)
    newer["ours@16"]["first_ratios"] = {"first_ms": 1.7}
    lines = real_models.table(
        {
            "gemma": real(1.15, 1.25, 1.6),
            "bert": real(1.3, 1.34, 1.7),
            "gpt2_124m": real(1.1, 3.0, 1.0),
            "swin": real(9.0, 9.0, 1.0),
            "xlnet": refused,
            "vit": plain,
            "opt": newer,
        }
    ).splitlines()[2:]
    rows = {line.split("|")[1].strip(): line for line in lines}
    assert rows["gemma"] == (
        "| gemma | 10.0 | 12.0 | 1.15 (1.15) | 1000 | 1.25 (1.25) | 100 | 150 "
        "| 1.60 | 1.20 | reached |"
    )
    assert rows["bert"].endswith("| **not reached**: time, first step |")
    assert "| **1.30** (1.2) |" in rows["bert"]
    assert rows["opt"].endswith(
        "| **1.70** | 1.20 | **not reached**: first step |"
    )
    assert rows["gpt2_124m"].endswith("| reached |")
    assert rows["swin"].endswith("| reached |")
    assert "**not reached**: ValueError: it mixes samples" in rows["xlnet"]
    assert "the plain step: no answer in 600 s" in rows["vit"]


def test_every_real_model_is_measured():
    assert set(real_models.LIMITS) == set(MODELS)


@pytest.mark.slow
def test_a_run_measures_a_real_model(tmp_path):
    path = tmp_path / "found.json"
    arguments = ["--sections", "real_models", "--models", "resnet50_frozen"]
    arguments += ["--size", "tiny", "--rounds", "2", "--output", str(path)]
    main(arguments)
    found = results.load(path)["real_models"]["resnet50_frozen"]
    assert found["ours@16"]["ratio"][0] > 0
    assert found["ours@16"]["process_mb"] > found["ours@16"]["peak_mb"] > 0
    assert found["plain@16"]["first_ms"] > 0
    assert found["plain@16"]["first_known_ms"] > 0
    assert "| resnet50_frozen |" in path.with_suffix(".md").read_text()


def test_costs_of_convolutions_are_linear_in_the_rates():
    row = np.array(factor_rates.CPU.convolutions)
    for name in ("mnist 1", "cifar 5", "convnext 1"):
        size, channels, filters, kernel, stride, padding, groups = (
            rates.CONVOLUTIONS[name]
        )
        costs = convolution_costs.costs(
            rates.windows_of(size, kernel, stride, padding=padding),
            groups,
            channels,
            small=filters,
            rates=factor_rates.CPU.convolutions,
        )
        for method in ("taps", "patches", "pixel_gram"):
            features = rates.convolution_features(name, method, False)
            expected = pytest.approx(costs[method], rel=1e-6)
            assert np.dot(features, row) == expected


def test_rates_that_made_the_times_are_found_again():
    rng = np.random.default_rng(0)
    before, true = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 9.0])
    features = rng.uniform(0.1, 1, (40, 3))
    fitted = rates.fit(features, features @ true, before)
    assert fitted == pytest.approx(true, rel=0.02)


def test_a_rate_without_a_measurement_keeps_its_place():
    before = np.array([1.0, 2.0, 3.0])
    features = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    fitted = rates.fit(features, features @ (4 * before), before)
    assert fitted == pytest.approx(4 * before, rel=0.02)


def test_the_matrix_of_ops_in_git_is_that_of_the_code():
    """So a trait or a rule that an op gains shows in the diff of a change."""
    found, _ = op_matrix.rows()
    with op_matrix.STORE.open(newline="") as file:
        stored = list(csv.reader(file))
    assert found == stored, "write it: python -m benchmarks.steps.op_matrix"


def test_the_table_of_a_gpu_has_ratios_and_gaps():
    row = {
        "plain_xla": {"ms": [2.0, 2.0, 2.0], "peak_mb": 100, "first_ms": 9e3},
        "ours_xla": {"ms": [3.0, 3.0, 3.0]},
        "torch_plain": {"ms": [4.0, 4.0, 4.0]},
        "opacus": {"ms": [8.0, 8.0, 8.0]},
        "jax_plain": {"error": "out of memory"},
    }
    here = {"accelerator": "a card", "cores": 4, "versions": {"Keras": "3"}}
    page = gpu.table({"machine": here, "rows": {"bert, 64": row}})
    assert "a card, 4 cores; Keras 3." in page
    cells = [cell.strip() for cell in page.splitlines()[-1].split("|")[1:-1]]
    assert dict(zip(gpu.HEADER[:3], cells)) == {
        "model, batch": "bert, 64",
        "plain, ms": "2",
        "clipped": "3 (1.50)",
    }
    assert cells[7:11] == ["100", "", "9", ""]
    assert cells[11:] == ["4", "", "8 (2.00)", "", "error", "", ""]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*large_models.MODELS])
def test_large_models_take_a_clipped_step(name, monkeypatch):
    from benchmarks.harness import keras_large

    tiny = large_models.tiny(large_models.MODELS[name])
    monkeypatch.setitem(large_models.MODELS, name, tiny)
    net = keras_large.build_model(name, kpg.PerGradModel)
    mode = kpg.Vectorized(kpg.ClippedMean(1.0))
    net.compile("sgd", keras_large.make_loss(), gradient_mode=mode)
    x, y = large_models.make_batch(name, 2)
    before = [w.numpy() for w in net.trainable_weights]
    # In float16 the first may overflow the loss scale, as in plain Keras.
    for _ in range(2):
        logs = net.train_on_batch(x, y, return_dict=True)
    assert np.isfinite(logs["loss"])
    after = [w.numpy() for w in net.trainable_weights]
    assert any((a != b).any() for a, b in zip(after, before))
