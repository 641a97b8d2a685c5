"""Reports on a model, a pipeline or runs, with the types of what they return.

Those of `kpg.explain` and `kpg.check_gradients` are here, too, for
annotations.

Example:

>>> import keras_pergrad as kpg
>>> def slowest(profile: kpg.diagnose.PipelineProfile) -> str:
...     return max(profile.stages, key=lambda row: row.share).name
"""

from keras_pergrad.common.lazy_names import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy(__name__, __file__)
