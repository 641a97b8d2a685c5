"""Readings as `GradientVariance` makes them, without a training."""

import math

import numpy as np

from keras_pergrad.runs import Histogram, Reading, RunInfo

PATHS = ("sequential/dense/kernel", "sequential/dense/bias")
INFO = RunInfo(
    "seed0",
    "ab12",
    "cd34",
    probe_samples=8,
    variables=[{"path": path, "shape": [2]} for path in PATHS],
    sketch_size=64,
    seed=0,
    batch_size=8,
    tags={"device": "cpu"},
)


def written(tracker, *readings):
    """Begin a run and write readings, of two steps if none are given."""
    tracker.begin(INFO)
    for one in readings or (reading(3), reading(10)):
        tracker.write(one)
    return tracker


def reading(step, **figures):
    """Return a reading with one undefined figure and one of a variable."""
    known = {"gradient_norm": 2.0 + step, "gradient_alpha": math.nan}
    return Reading(
        step=step,
        samples=8,
        figures=known | figures,
        by_variable={"norm_test": np.float32([0.5, math.nan])},
        variable_names=PATHS,
        histograms={
            f"gradient/{PATHS[0]}": Histogram((1, 3), (-1.0, 0.0, 0.25)),
            "sample_norms": Histogram((8,), (1.0, 2.0)),
        },
        layers={"dead": ("dense",)},
    )
