"""Small runs on disk, written without a model."""

import pathlib

import numpy as np

from keras_pergrad.runs.recording import RunInfo, RunWriter

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


def record(step, **scalars):
    """Keyword arguments of `RunWriter.append`, different at each step."""
    random = np.random.default_rng(step)
    return {
        "scalars": {
            "step": step,
            "epoch": step // 10,
            "time": 1e9 + step,
            "loss": 1.0 / (step + 1),
            "gradient_norm": float(step),
            **scalars,
        },
        "norms": random.normal(size=2).astype("float32"),
        "variances": random.normal(size=2).astype("float32"),
        "variable_sketches": random.normal(size=(2, 16)).astype("float32"),
        "sketch": random.normal(size=SKETCH).astype("float32"),
    }


def write(log_dir, steps, make=RunWriter.create, reads=None, **changes):
    """Write records, with readings of `reads`; return the run's directory."""
    with make(log_dir, info(**changes)) as writer:
        for step in steps:
            writer.append(**record(step), reading=reads and reads(step))
    return pathlib.Path(writer.directory)
