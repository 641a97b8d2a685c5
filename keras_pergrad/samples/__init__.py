"""Per-sample gradients from the ops in which weights meet the data."""

from keras_pergrad.samples import (  # noqa: F401
    broadcast_rules,
    contraction_rules,
    convolution_rules,
    table_rules,
    weight_products,
)
from keras_pergrad.samples.tape import Tape, sum_of_outputs
from keras_pergrad.samples.trial_run import counters, refusals

__all__ = ["Tape", "counters", "refusals", "sum_of_outputs"]
