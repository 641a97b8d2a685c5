"""Influence: the training samples that helped or hurt a prediction."""

from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
