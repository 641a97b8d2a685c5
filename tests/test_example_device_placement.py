"""The example that people with a Mac are asked to run."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_it_prints_and_saves_everything_without_paths(tmp_path):
    saved = tmp_path / "placement.json"
    script = ROOT / "examples" / "device_placement.py"
    done = subprocess.run(
        [sys.executable, str(script), "--save", str(saved)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for part in (
        "images",
        "relu",
        "sequences",
        "the CPU only",
        "predicted for Metal",
        "fits from",
    ):
        assert part in done.stdout
    text = saved.read_text()
    found = json.loads(text)
    assert set(found) == {"images", "relu", "sequences", "doctor"}
    assert found["images"]["agrees"]
    assert "known to be wrong on some versions" in done.stdout
    assert found["images"]["gradients_agree"]
    assert found["images"]["repeats"]["finite"]
    predicted = found["images"]["predicted"]
    for platform in ("metal", "metal-community"):
        assert predicted[platform]["device"]["BiasAdd"] == 3
    assert found["doctor"]["errors"] == 0
    assert str(ROOT) not in text
    assert str(tmp_path) not in text
