"""Gradients under your control for Keras 3 on TensorFlow."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from keras_pergrad import callbacks
    from keras_pergrad.placement.comparison import compare_devices
    from keras_pergrad.placement.prediction import predict_placement

__all__ = ["callbacks", "compare_devices", "predict_placement"]

# Names are fetched on first use: `python -m keras_pergrad doctor` imports
# this file, and has to work where `import tensorflow` fails.
_HOMES = {
    "compare_devices": "keras_pergrad.placement.comparison",
    "predict_placement": "keras_pergrad.placement.prediction",
}


def __getattr__(name):
    if name == "callbacks":
        return importlib.import_module("keras_pergrad.callbacks")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
