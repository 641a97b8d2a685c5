"""Gradients that conflict: aggregations by their Gramian, and `ByTask`.

Public are the names of `aggregations` and `modes`. `import keras_pergrad`
imports this folder, so that their registries and saved models find the classes.
"""

from keras_pergrad.multitask import by_task as _by_task  # noqa: F401
from keras_pergrad.multitask import of_conflicts as _of_conflicts  # noqa: F401
from keras_pergrad.multitask import of_weights as _of_weights  # noqa: F401
from keras_pergrad.multitask import robust as _robust  # noqa: F401
