"""The gradient modes, one class a file."""

from typing import Any

from keras_pergrad.aggregations.aggregation import Aggregation
from keras_pergrad.modes.accumulated import Accumulated
from keras_pergrad.modes.base import (
    GradientMode,
    PartialSums,
    Step,
    gradient_modes,
    register_gradient_mode,
)
from keras_pergrad.modes.batch import Batch
from keras_pergrad.modes.by_task import ByTask
from keras_pergrad.modes.per_sample import PerSample
from keras_pergrad.modes.step_readers import StepReader, StepSamples
from keras_pergrad.modes.sums import PartOfBatch
from keras_pergrad.modes.vectorized import Vectorized, sample_gradients


def get(identifier: Any) -> GradientMode:
    """Return a `GradientMode` for a name, a config dict or an object.

    Args:
        identifier: such as "vectorized", what `keras.saving` has made of a
            mode, or a mode, which is returned as it is.

    Raises:
        ValueError: the name is unknown, or the config cannot be read.
        TypeError: the identifier is of another type.

    Example:

    >>> from keras_pergrad import modes
    >>> modes.get("batch")
    Batch()
    """
    if isinstance(identifier, Aggregation):
        raise TypeError(
            f"Expected a gradient mode. Received: {identifier!r}, an "
            "aggregation, which a mode applies to its gradients; write "
            f"Vectorized(aggregation={identifier!r})."
        )
    if isinstance(getattr(identifier, "gradient_mode", None), GradientMode):
        raise TypeError(
            "Expected a gradient mode. Received an object that has one, of "
            f"type {type(identifier).__name__}; if it is named `private`, "
            "write gradient_mode=private.gradient_mode."
        )
    return gradient_modes.get(identifier)


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
