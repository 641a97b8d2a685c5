"""One piece of advice, and how judgements speak."""

import dataclasses
import itertools
import math
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class HealthAdvice:
    """One piece of advice on a training.

    Attributes:
        name: which one, such as "rate_too_high"; it stays the same.
        text: what was measured, and what to do.
        figures: the numbers that it rests on.
        layer: the path of the layer that it is about, or None.
        is_fault: whether something is wrong; else training is sound, and
            could be cheaper.
    """

    name: str
    text: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    layer: str | None = None
    is_fault: bool = True


def series(readings, name):
    """Return the finite values of a figure over the readings."""
    values = (r.figures.get(name, math.nan) for r in readings)
    return [v for v in values if math.isfinite(v)]


def median(values):
    """Return the median, or NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def falls(losses):
    """Whether each is below the one before."""
    return all(a > b for a, b in itertools.pairwise(losses))


def layers_of_variables(readings):
    """Return layer path → the places of its variables, in their order."""
    layers = {}
    for k, name in enumerate(readings[-1].variable_names):
        layers.setdefault(name.rpartition("/")[0] or name, []).append(k)
    return layers
