"""Small runs on disk, written without a model."""

import pathlib

import numpy as np

from keras_pergrad.runs import Reading, RunInfo
from keras_pergrad.runs.recorder import Recorder

SKETCH = 32
VARIABLES = [
    {"path": "dense/kernel", "shape": [4, 3]},
    {"path": "dense/bias", "shape": [3]},
]


def info(run="first", **changes):
    fields = {
        "architecture": "ab12",
        "probe": "cd34",
        "probe_samples": 8,
        "variables": VARIABLES,
        "sketch_size": SKETCH,
        **changes,
    }
    return RunInfo(run=run, **fields)


def reading(step, loss=None, variances=True, **figures):
    """A reading that is different at each step."""
    random = np.random.default_rng(step)
    by_variable = {"norm": random.normal(size=2).astype("float32")}
    if variances:
        by_variable["variance"] = random.normal(size=2).astype("float32")
    return Reading(
        step=step,
        epoch=step // 10,
        time=1e9 + step,
        samples=8,
        loss=1.0 / (step + 1) if loss is None else loss,
        figures={"gradient_norm": float(step), **figures},
        by_variable=by_variable,
        variable_names=tuple(v["path"] for v in VARIABLES),
    )


def sketches(step):
    """Return the sketches of a step, by their names for `append`."""
    random = np.random.default_rng([step, 1])
    return {
        "variable_sketches": random.normal(size=(2, 16)).astype("float32"),
        "sketch": random.normal(size=SKETCH).astype("float32"),
    }


def write(log_dir, steps, make=Recorder.start, *, reads=reading, **changes):
    """Write records of readings; return the run's directory."""
    with make(log_dir, info(**changes)) as recorder:
        for step in steps:
            recorder.append(reads(step), **sketches(step))
    return pathlib.Path(recorder.directory)
