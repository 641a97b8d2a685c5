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
    "are_my_gradients_consistent": [
        "cnn: Yes: 12 of 12",
        "attention: Yes: 12 of 12",
        "broken: No: 3 of 4",
    ],
    "quickstart": ["vectorized", "per_sample", "most unusual", ".png"],
    "healthy_training": [
        "sound: nothing to say",
        "rate × 30: \n  rate_too_high",
        "rate / 100: \n  rate_too_low",
        "a dead layer: \n  layer_dead: None of the probe's 64 samples",
        "summed loss: \n  loss_is_a_sum",
    ],
    "last_layer_laplace": ["digits: sure by", "noise: sure by"],
    "find_the_stall": ["with prefetch", "before", "parallel map"],
    "normalize_in_pipeline": ["pipeline", "model", "step"],
    "multi_worker": ["weights agree: True", "from one process"],
    "data_service": ["fed by the service", "weights: 0.0e+00"],
    "private_digits": ["corrected Adam", "no privacy", "are (8", ".png"],
    "private_images": ["piece 1: ", "piece 3: ", "epsilon 4.00", "are (4,"],
    "private_lora": ["weights are trained", "ms with privacy", "after private"],
    "text_model": ["of 15 wrong labels are", "clipped_fraction", ".png"],
    "vae": ["epoch 25: loss", "clipped", ".png"],
    "saliency_map": ["accuracy", "explain all but 0", ".png"],
    "batch_does_not_fit": ["in parts of 32", "weights differ by", ".png"],
    "sample_values": ["are flipped labels", "without:", ".png"],
    "compare_runs": ["7 runs of 5 seeds", "different seeds", ".html"],
}
#: Half a minute each, and what they show is tested elsewhere, too.
EXHAUSTIVE = {
    "are_my_gradients_consistent",
    "compare_runs",
    "healthy_training",
    "multi_worker",
    "private_digits",
    "private_images",
    "private_lora",
}
# Run by test_try_metal.py, and with its options by test_where_does_it_run.py.
ELSEWHERE = {"try_metal", "where_does_it_run"}


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*WORDS} | ELSEWHERE


def test_the_stall_of_the_example_is_named(monkeypatch, capsys):
    """As long as a quiet machine takes; what is run prints its own times."""
    figures = {"wait_ms": 27.0, "step_ms": 8.0}
    recorded_stalls.say(monkeypatch, figures, work={"FlatMap": 1.0})
    example = runpy.run_path(str(EXAMPLES / "find_the_stall.py"))
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
