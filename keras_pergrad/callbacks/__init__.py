"""Callbacks that watch training; they depend on no mode and no rule."""

from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
