"""One measurement of a gradient: a row of a record."""

import dataclasses
import json
import time as clock
from collections.abc import Mapping

import numpy as np

#: Figures by variable that a record holds in its array, not in its line.
IN_ARRAY = "norm", "variance"


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many values lie between two edges.

    Attributes:
        counts: how many values are in each bin; those that are not finite
            are in none.
        edges: the bins' borders, increasing, one more than there are bins; a
            bin includes its left border, the last one both.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """One measurement of `GradientVariance`.

    Norms and variances are of gradients without weight regularisers. NaN: the
    number is undefined now; absent: it was not measured.

    Attributes:
        step: the number of updates before it.
        samples: how many were measured, n.
        figures: numbers by the names that they have in the logs.
        by_variable: numbers of each variable, (V,) float32, by name: "norm",
            "variance", "noise_scale", "snr", "repeat_deviation", and those of
            instruments.
        variable_names: the paths of the V `model.trainable_variables`.
        epoch: the epoch in which it was taken, from 0.
        time: when it was taken, in seconds since 1970.
        histograms: `"gradient/<path of a variable>"`, of the entries of the
            mean gradient, and `"sample_norms"`, of the norms of the samples'
            gradients.
        layers: the paths of the layers that an instrument names: "dead",
            "vanishing", "exploding".
        loss: the compiled loss of the measured batch, regularisers included;
            None: not known.
    """

    step: int
    samples: int
    figures: Mapping[str, float]
    by_variable: Mapping[str, np.ndarray]
    variable_names: tuple[str, ...]
    epoch: int = 0
    time: float = dataclasses.field(default_factory=clock.time)
    histograms: Mapping[str, Histogram] = dataclasses.field(
        default_factory=dict
    )
    layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    loss: float | None = None

    def with_figures(self, figures: Mapping[str, float]) -> "Reading":
        """Return the reading with more figures."""
        return dataclasses.replace(self, figures={**self.figures, **figures})


def to_line(reading):
    """Return a reading as a line of JSON, without what the array holds."""
    fields = {
        "step": reading.step,
        "epoch": reading.epoch,
        "time": reading.time,
        "samples": reading.samples,
        "loss": reading.loss,
        "figures": {k: float(v) for k, v in reading.figures.items()},
        "by_variable": {
            name: None if name in IN_ARRAY else _shortest(values)
            for name, values in reading.by_variable.items()
        },
        "layers": reading.layers,
        "histograms": {
            name: dataclasses.asdict(histogram)
            for name, histogram in reading.histograms.items()
        },
    }
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def from_fields(fields, variable_names, arrays):
    """Return the reading of a parsed line.

    `arrays`: what the record's array holds of it, name → (V,).
    """
    by_variable = {
        name: arrays[name] if values is None else np.array(values, np.float32)
        for name, values in fields["by_variable"].items()
    }
    histograms = {
        name: Histogram(tuple(h["counts"]), tuple(h["edges"]))
        for name, h in fields["histograms"].items()
    }
    layers = {name: tuple(paths) for name, paths in fields["layers"].items()}
    replaced = {
        "by_variable": by_variable,
        "histograms": histograms,
        "layers": layers,
        "variable_names": tuple(variable_names),
    }
    return Reading(**fields | replaced)


def _shortest(values):
    """Return float32 numbers as the shortest decimals that give them back."""
    return [float(str(value)) for value in np.asarray(values, np.float32)]
