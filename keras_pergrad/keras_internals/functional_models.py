"""Models made of inputs and outputs, and the classes that become such.

Private names in use: `keras.src.models.functional.Functional`,
`keras.src.models.functional.functional_like_constructor`,
`keras.src.models.model.functional_init_arguments`,
`KerasTensor._keras_history`, `Sequential._functional`.
"""

import keras
from keras.src.models import functional as keras_functional
from keras.src.models.functional import Functional as Functional
from keras.src.models.model import functional_init_arguments


def has_inputs_and_outputs(args, kwargs):
    """Whether a model's arguments are symbolic inputs and outputs."""
    return functional_init_arguments(args, kwargs)


def make_functional(cls, base, functional):
    """Put a functional class in the place of `base` below `cls` alone."""
    if issubclass(cls, Functional):
        return
    cls.__bases__ = tuple(
        functional if other is base else other for other in cls.__bases__
    )
    if not issubclass(cls, Functional):
        for other in cls.__bases__:
            if issubclass(other, base):
                make_functional(other, base, functional)


def is_only_layers(layer):
    """Whether it consists of layers, without code of its own."""
    return type(layer) is keras.Sequential or (
        isinstance(layer, Functional)
        and keras_functional.functional_like_constructor(type(layer))
    )


def model_inside(model):
    """Return the model that a Sequential one is built of, or None."""
    return model._functional if isinstance(model, keras.Sequential) else None


def made_by(tensor):
    """Return the layer or operation that a symbolic tensor comes from."""
    return tensor._keras_history.operation
