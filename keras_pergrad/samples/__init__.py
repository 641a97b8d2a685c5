"""Per-sample gradients from the ops in which weights meet the data."""

from keras_pergrad.samples import convolution_rules  # noqa: F401
from keras_pergrad.samples.tape import Tape, first_tensor

__all__ = ["Tape", "first_tensor"]
