"""The gradient modes, one class a file."""

from keras_pergrad.common.lazy_names import refuse_name as _refuse_name
from keras_pergrad.modes.accumulated import Accumulated
from keras_pergrad.modes.base import (
    GradientMode,
    PartialSums,
    Step,
    get,
    register_gradient_mode,
)
from keras_pergrad.modes.batch import Batch
from keras_pergrad.modes.by_task import ByTask
from keras_pergrad.modes.per_sample import PerSample
from keras_pergrad.modes.step_readers import StepReader, StepSamples
from keras_pergrad.modes.sums import PartOfBatch
from keras_pergrad.modes.vectorized import Vectorized, sample_gradients

__all__ = [
    "Accumulated",
    "Batch",
    "ByTask",
    "GradientMode",
    "PartOfBatch",
    "PartialSums",
    "PerSample",
    "Step",
    "StepReader",
    "StepSamples",
    "Vectorized",
    "get",
    "register_gradient_mode",
    "sample_gradients",
]


def __dir__():
    return __all__


def __getattr__(name):
    _refuse_name(__name__, name)
