"""Readings of the small trainings, recorded.

    python -m tests.gradient_health.recorded [mlp cnn transformer]

writes them anew: all faults and sound twins of `trainings`, of one seed. The
figures by variable are kept of the last reading.
"""

import dataclasses
import functools
import json
import pathlib
import sys

import numpy as np

from keras_pergrad.gradient_health.fit_record import FitRecord
from keras_pergrad.runs import Reading
from tests.gradient_health import trainings

FILE = pathlib.Path(__file__).with_name("recorded_trainings.json")
SEED = 0
FIGURES = (
    "gradient_update_ratio",
    "gradient_alpha",
    "gradient_distance",
    "gradient_snr",
    "gradient_early_stopping",
)


@functools.cache
def _recordings():
    return json.loads(FILE.read_text(encoding="utf-8"))


def recorded(task, fault):
    """Return the readings of a training, and its `FitRecord`."""
    kept = _recordings()[f"{task} {fault}"]
    readings = [
        Reading(
            step=step,
            samples=kept["samples"],
            figures=dict(zip(FIGURES, figures)),
            by_variable={},
            variable_names=tuple(kept["variables"]),
        )
        for step, *figures in kept["readings"]
    ]
    norms = kept["by_variable"]["-1"]["norm"]
    readings[-1].by_variable["norm"] = np.array(norms, "float32")
    fit = {name: _tuples(value) for name, value in kept["fit"].items()}
    return readings, FitRecord(**fit)


def as_json(readings, fit):
    """Return what is kept of a training."""
    last = readings[-1]
    figures = [[r.step, *(r.figures[f] for f in FIGURES)] for r in readings]
    return {
        "samples": last.samples,
        "variables": last.variable_names,
        "readings": figures,
        "by_variable": {"-1": {"norm": last.by_variable["norm"].tolist()}},
        "fit": dataclasses.asdict(fit),
    }


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _rounded(value):
    def four_digits(number):
        return float(f"{float(number):.4g}")

    return json.loads(json.dumps(value), parse_float=four_digits)


def main(tasks):
    """Train, and write the file."""
    kept = dict(_recordings()) if FILE.exists() else {}
    for task in tasks or trainings.TASKS:
        for fault in (*trainings.SOUND, *trainings.FAULTS):
            advice, *given = trainings.watched(task, fault, SEED)
            print(task, fault, [one.name for one in advice], flush=True)
            kept[f"{task} {fault}"] = _rounded(as_json(*given))
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(value)}"
            for name, value in sorted(kept.items())
        )
        FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
