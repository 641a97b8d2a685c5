"""Run records whose truth is known: gradients made of numbers one chose."""

import numpy as np

from keras_pergrad.runs import Reading
from keras_pergrad.runs.recorder import Recorder
from keras_pergrad.runs.sketch import GradientSketch
from tests.runs import records

SHAPES = {"first/kernel": (20, 10), "first/bias": (10,), "last/kernel": (10, 9)}
SIZE = 300
SAMPLES = 32


def info(name, **changes):
    variables = [{"path": p, "shape": list(s)} for p, s in SHAPES.items()]
    fields = {"probe_samples": SAMPLES, "sketch_size": 256, "machine": "m"}
    return records.info(name, **fields | {"variables": variables} | changes)


def write(log_dir, name, gradients, *, steps=None, variance=None, **changes):
    """Writes one run with a gradient (SIZE,) a record.

    `variance`: of all records, or a list with one of each.
    """
    made = info(name, **changes)
    sketch = GradientSketch(made.sketch_size)
    ends = np.cumsum([np.prod(s) for s in SHAPES.values()])
    steps = range(len(gradients)) if steps is None else steps
    variances = np.broadcast_to(np.float64(variance), len(gradients))
    with Recorder.start(log_dir, made) as recorder:
        for step, gradient, trace in zip(steps, gradients, variances):
            parts = np.split(gradient, ends[:-1])
            whole, each = sketch(parts)
            figures = {"gradient_norm": float(np.linalg.norm(gradient))}
            if variance is not None:
                figures["gradient_variance"] = float(trace)
            norms = [np.linalg.norm(part) for part in parts]
            reading = Reading(
                step=int(step),
                samples=SAMPLES,
                loss=1.0,
                figures=figures,
                by_variable={"norm": np.array(norms, "float32")},
                variable_names=tuple(SHAPES),
            )
            recorder.append(reading, variable_sketches=each, sketch=whole)


def around(mean, spread, count, *, seed):
    """Gradients around a mean, (count, SIZE); covariance trace spread²."""
    noise = np.random.default_rng(seed).normal(size=(count, SIZE))
    return mean + spread / np.sqrt(SIZE) * noise


def write_seeds(log_dir, count, steps, **changes):
    """Runs named by numbers, which are their seeds."""
    for seed in range(count):
        gradients = around(1.0, 8.0, steps, seed=seed)
        write(log_dir, f"{seed:02}", gradients, **{"seed": seed, **changes})


def seeds_and_repeats(log_dir, nondeterminism=0.0, steps=6):
    """Five seeds, the first of them three times."""
    for seed in range(5):
        path = around(1.0, 8.0, steps, seed=seed)
        for repeat in range(3 if seed == 0 else 1):
            rounding = around(0.0, nondeterminism, steps, seed=[seed, repeat])
            write(
                log_dir,
                f"seed {seed} repeat {repeat}",
                path + rounding,
                variance=640.0,
                seed=seed,
                tags={"repeat": repeat},
            )


def kinds(comparison):
    """Return the kind of each finding, in order."""
    return [finding.kind for finding in comparison.findings]
