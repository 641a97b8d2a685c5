"""The examples about data run and say what they promise."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("find_the_stall", ["Write:", "prefetch", "before", "after"]),
        ("normalize_in_pipeline", ["pipeline", "model", "step"]),
    ],
)
def test_example_runs(name, words):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for word in words:
        assert word in run.stdout
