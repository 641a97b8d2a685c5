"""Gradients under your control for Keras 3 on TensorFlow."""

import keras as _keras

if _keras.backend.backend() != "tensorflow":
    raise ImportError(
        "keras_pergrad needs Keras on TensorFlow, but Keras runs on "
        f"{_keras.backend.backend()!r}. Set the environment variable "
        "KERAS_BACKEND=tensorflow before Keras is first imported (or "
        '"backend": "tensorflow" in ~/.keras/keras.json).'
    )

from keras_pergrad import callbacks, factors, modes, rules
from keras_pergrad.aggregation import (
    Aggregation,
    ClippedMean,
    Mean,
    register_aggregation,
)
from keras_pergrad.explain import explain
from keras_pergrad.functional import (
    gradient_statistics,
    per_sample_gradients,
    per_sample_norms,
)
from keras_pergrad.model import PerGradModel
from keras_pergrad.modes import (
    Accumulated,
    Batch,
    GradientMode,
    PerSample,
    Vectorized,
    register_gradient_mode,
)
from keras_pergrad.rules import register_rule
from keras_pergrad.statistics import GradientStatistics

__version__ = "0.1.0"

__all__ = [
    "Accumulated",
    "Aggregation",
    "Batch",
    "ClippedMean",
    "GradientMode",
    "GradientStatistics",
    "Mean",
    "PerGradModel",
    "PerSample",
    "Vectorized",
    "callbacks",
    "explain",
    "factors",
    "gradient_statistics",
    "modes",
    "per_sample_gradients",
    "per_sample_norms",
    "register_aggregation",
    "register_gradient_mode",
    "register_rule",
    "rules",
]
