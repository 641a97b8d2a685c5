"""Per-sample gradients from the ops in which weights meet the data."""

from keras_pergrad.samples import (  # noqa: F401
    broadcast_rules,
    contraction_rules,
    convolution_rules,
    table_rules,
    types,
    weight_products,
)
from keras_pergrad.samples.aside import (
    counters,
    divides,
    refusals,
    vouched_ops,
)
from keras_pergrad.samples.traced_step import TracedStep, sum_of_outputs

__all__ = [
    "TracedStep",
    "counters",
    "divides",
    "refusals",
    "sum_of_outputs",
    "vouched_ops",
]
