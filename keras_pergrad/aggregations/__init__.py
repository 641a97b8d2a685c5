"""Aggregations: what makes one gradient of the samples'.

Given to a mode: `Vectorized(aggregation=ClippedMean(1.0))`.
"""

# For their names to be known; those by a Gramian are in `multitask`.
from keras_pergrad.aggregations import clipping as _clipping  # noqa: F401
from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
