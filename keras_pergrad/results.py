"""The types of what reports and callbacks return, for annotations.

Example:

>>> import keras_pergrad as kpg
>>> def slowest(profile: kpg.results.PipelineProfile) -> str:
...     return max(profile.stages, key=lambda row: row.share).name
"""

from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
