"""The model whose gradient mode can be chosen, and its kinds."""

from keras_pergrad.model import wrapping  # noqa: F401
from keras_pergrad.model.model import PerGradModel

__all__ = ["PerGradModel"]
