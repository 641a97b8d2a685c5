"""The gradient modes, one class a file."""

from keras_pergrad.common.lazy_names import lazy as _lazy

# For their names to be known; `ByTask` is in `multitask`.
from keras_pergrad.modes import accumulated as _accumulated  # noqa: F401
from keras_pergrad.modes import batch as _batch  # noqa: F401
from keras_pergrad.modes import per_sample as _per_sample  # noqa: F401
from keras_pergrad.modes import vectorized as _vectorized  # noqa: F401

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
