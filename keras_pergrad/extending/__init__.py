"""Custom rules: their registration, and types and factors for them.

Custom modes are described in `kpg.modes`, aggregations in
`kpg.aggregations`.
"""

from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
