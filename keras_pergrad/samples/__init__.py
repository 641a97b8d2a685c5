"""Per-sample gradients from the ops in which weights meet the data."""

from keras_pergrad.samples import convolution_rules  # noqa: F401
from keras_pergrad.samples.exchange import refusals
from keras_pergrad.samples.tape import Tape, sum_of_outputs

__all__ = ["Tape", "refusals", "sum_of_outputs"]
