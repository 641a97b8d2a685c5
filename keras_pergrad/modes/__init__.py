"""The gradient modes, one class a file."""

from keras_pergrad.aggregation import Aggregation
from keras_pergrad.logs import Logs
from keras_pergrad.modes.accumulated import Accumulated
from keras_pergrad.modes.base import (
    GradientMode,
    PartialSums,
    Step,
    modes,
    register_gradient_mode,
)
from keras_pergrad.modes.batch import Batch, evaluate
from keras_pergrad.modes.per_sample import PerSample
from keras_pergrad.modes.vectorized import Vectorized


def get(identifier):
    """Return a `GradientMode` for a name, a config dict or an object.

    Raises:
        ValueError: the name is unknown, or the config cannot be read.
        TypeError: the identifier is of another type.

    Args:
        identifier: such as "vectorized", what `keras.saving` has made of a
            mode, or a mode, which is returned as it is.

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
    return modes.get(identifier)


__all__ = [
    "Accumulated",
    "Batch",
    "GradientMode",
    "Logs",
    "PartialSums",
    "PerSample",
    "Step",
    "Vectorized",
    "evaluate",
    "get",
    "modes",
    "register_gradient_mode",
]
