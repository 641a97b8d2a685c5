"""One piece of advice on a training."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class HealthAdvice:
    """One piece of advice on a training.

    Attributes:
        name: which one, such as "rate_too_high"; it stays the same.
        text: what was measured, and what to do.
        figures: the numbers on which it is based.
        layer: the path of the layer that it is about, or None.
        is_fault: whether something is wrong; else training is sound, and
            could be cheaper.
    """

    name: str
    text: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    layer: str | None = None
    is_fault: bool = True
