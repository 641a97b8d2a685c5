"""Every example runs as its first lines say, and prints what it promises."""

import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

from tests.keras_internals.distribution.cluster import PATIENT
from tests.marks import few
from tests.stalls import recorded_stalls

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"

WORDS = {
    "check_gradients": [
        "cnn: Yes: 12 of 12",
        "attention: Yes: 12 of 12",
        "broken: No: 3 of 4",
    ],
    "quickstart": ["vectorized", "per_sample", "most unusual", ".png"],
    "gradient_variance": [
        "sound: nothing to say",
        "rate × 30: \n  rate_too_high",
        "rate / 100: \n  rate_too_low",
        "a dead layer: \n  layer_dead: None of the probe's 64 samples",
        "summed loss: \n  loss_is_a_sum",
    ],
    "audit_privacy": [
        "with noise: epsilon is at least 0 ",
        "The claim is not refuted",
        "without noise: epsilon is at least 2",
        "THE CLAIM IS REFUTED",
    ],
    "last_layer_laplace": ["digits: sure by", "noise: sure by"],
    "data_stall": ["with prefetch", "before", "parallel map"],
    "profile_pipeline": ["pipeline alone", "model alone", "Verdict"],
    "multi_worker": ["weights agree: True", "from one process"],
    "data_service": ["fed by the service", "weights: 0.0e+00"],
    "private_training": ["corrected Adam", "no privacy", "are (8", ".png"],
    "private_images": ["piece 1: ", "piece 3: ", "epsilon 4.00", "are (4,"],
    "private_lora": ["weights are trained", "ms with privacy", "after private"],
    "text_model": ["of 15 wrong labels are", "clipped_fraction", ".png"],
    "vae": ["epoch 25: loss", "clipped", ".png"],
    "saliency_map": ["accuracy", "explain all but 0", ".png"],
    "accumulated_gradients": ["in parts of 32", "weights differ by", ".png"],
    "influence": ["looks like a", "without the ten", ".html"],
    "sample_values": ["are flipped labels", "without:", ".png"],
    "compare_runs": ["7 runs of 5 seeds", "different seeds", ".html"],
}
#: Half a minute each, and what they show is tested elsewhere, too.
EXHAUSTIVE = {
    "check_gradients",
    "compare_runs",
    "gradient_variance",
    "multi_worker",
    "private_training",
    "private_images",
    "private_lora",
}
# Run by test_try_metal.py, and by test_example_device_placement.py.
ELSEWHERE = {"try_metal", "device_placement"}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*WORDS} | ELSEWHERE


def test_the_stall_of_the_example_is_named(monkeypatch, capsys):
    """As long as a quiet machine takes; what is run prints its own times."""
    figures = {"wait_ms": 27.0, "step_ms": 8.0}
    recorded_stalls.say(monkeypatch, figures, work={"FlatMap": 1.0})
    example = runpy.run_path(str(EXAMPLES / "data_stall.py"))
    example["load"].__globals__["LOAD"] = 0
    example["main"]()
    printed = capsys.readouterr().out
    assert (
        "     Write:  dataset = dataset.prefetch(tf.data.AUTOTUNE)" in printed
    )
    assert "num_parallel_calls=" in printed


@pytest.mark.parametrize("name", few(WORDS, (), WORDS.keys() - EXHAUSTIVE))
def test_example_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        # The workers of an example must not give up on a machine that pauses.
        env={**os.environ, "PYTHONPATH": f"{EXAMPLES.parent}:{PATIENT}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list(tmp_path.iterdir())  # Files go to examples/output.
    for word in WORDS[name]:
        assert word in done.stdout
    if name == "private_lora":
        perplexity = re.search(r"(\S+) before, (\S+) after", done.stdout)
        before, after = perplexity.groups()
        assert float(after) < 0.5 * float(before)
