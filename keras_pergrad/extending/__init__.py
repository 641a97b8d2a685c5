"""Rules of one's own: their registration, and types and factors for them.

Modes of one's own are told in `kpg.modes`, aggregations in
`kpg.aggregations`.
"""

from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
