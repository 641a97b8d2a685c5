"""How gradients are obtained; one class a file."""

from keras_pergrad.modes.accumulated import Accumulated
from keras_pergrad.modes.base import (
    GradientMode,
    Step,
    modes,
    register_gradient_mode,
)
from keras_pergrad.modes.batch import Batch
from keras_pergrad.modes.per_sample import PerSample
from keras_pergrad.modes.shares import evaluate
from keras_pergrad.modes.vectorized import Vectorized

get = modes.get

__all__ = [
    "Accumulated",
    "Batch",
    "GradientMode",
    "PerSample",
    "Step",
    "Vectorized",
    "evaluate",
    "get",
    "modes",
    "register_gradient_mode",
]
