"""Gradients that conflict: aggregations by their Gramian, and `ByTask`.

Public are the names of `aggregations` and `modes`. `import keras_pergrad`
imports this folder, so that their registries and saved models find the classes.
"""

from keras_pergrad.multitask import aligned_mtl as _aligned_mtl  # noqa: F401
from keras_pergrad.multitask import by_task as _by_task  # noqa: F401
from keras_pergrad.multitask import cagrad as _cagrad  # noqa: F401
from keras_pergrad.multitask import geometric_median as _geometric_median  # noqa: F401
from keras_pergrad.multitask import imtlg as _imtlg  # noqa: F401
from keras_pergrad.multitask import krum as _krum  # noqa: F401
from keras_pergrad.multitask import mgda as _mgda  # noqa: F401
from keras_pergrad.multitask import pcgrad as _pcgrad  # noqa: F401
from keras_pergrad.multitask import upgrad as _upgrad  # noqa: F401
