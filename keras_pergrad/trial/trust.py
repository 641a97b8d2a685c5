"""Models that keep samples apart by how they are put together.

Layers that Keras ships act on each sample alone, or are refused by name; a
model of nothing else needs no trial.

Private names in use: `Layer._flatten_layers`,
`keras.src.models.functional.Functional`.
"""

import inspect

import keras
from keras.src.models.functional import Functional

# Not all of Keras: `ops.max` as an activation is the user's doing.
_OURS = (
    "keras.src.activations.",
    "keras.src.layers.",
    "keras.src.losses.",
    "keras.src.regularizers.",
    "keras.src.initializers.",
    "keras_pergrad.",
)
_PARTS = (keras.regularizers.Regularizer, keras.initializers.Initializer)
_ELEMENTWISE = {"Add", "Subtract", "Multiply", "Divide", "TrueDivide"}


def keeps_apart(model):
    """Whether all of a model is known to act on each sample alone."""
    return all(_is_known(layer) for layer in model._flatten_layers())


def _is_known(layer):
    cls = type(layer)
    if isinstance(layer, keras.Model):
        if cls.call is keras.Sequential.call:
            return True
        return cls.call is Functional.call and all(
            isinstance(o, keras.Layer) or type(o).__name__ in _ELEMENTWISE
            for o in layer.operations
        )
    if isinstance(layer, keras.layers.Lambda):
        return False
    return cls.__module__.startswith("keras.src.") and all(
        is_ours(part) for part in vars(layer).values()
    )


def is_ours(part):
    """Whether it is not a function or regulariser of the user's."""
    if inspect.isroutine(part):
        return (part.__module__ or "").startswith(_OURS)
    if isinstance(part, _PARTS):
        return type(part).__module__.startswith(_OURS)
    return True
