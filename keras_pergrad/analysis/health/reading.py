"""The reading of one measurement, by instruments of gradient health."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many values lie between two edges.

    Attributes:
        counts: how many values are in each bin; those that are not finite
            are in none.
        edges: the bins' borders, one more than bins, increasing; a bin has
            its left border, the last one both.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class HealthReading:
    """One measurement of `GradientVariance`.

    Attributes:
        step: the number of updates before it.
        samples: how many were measured, n.
        figures: numbers by the names that they have in the logs; NaN:
            undefined now; absent: not measured.
        by_variable: by instrument a value for each of `variable_names`; NaN:
            undefined.
        variable_names: the paths of `model.trainable_variables`, in order.
        histograms: `"gradient/<path of a variable>"`, of the entries of the
            mean gradient, and `"sample_norms"`, of the norms of the samples'
            gradients.
        layers: by instrument the paths of the layers that it names:
            "dead", "vanishing", "exploding".
    """

    step: int
    samples: int
    figures: Mapping[str, float]
    by_variable: Mapping[str, tuple[float, ...]]
    variable_names: tuple[str, ...]
    histograms: Mapping[str, Histogram] = dataclasses.field(
        default_factory=dict
    )
    layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
