"""Models of another class that share a model's layers and attributes.

Private names in use: `Sequential._layers`, `Layer._tracker`, `_auto_config`,
`_build_shapes_dict`, `_dtype_policy`, `_input_spec`, `_path`,
`_supports_masking`, `_trainable`, `Model._compile_config`,
`_compiled_trainable_state`; the beginning `_self_` of names.
"""

import contextlib
import functools
from typing import Any

import keras

from keras_pergrad.common.registry import PACKAGE
from keras_pergrad.keras_internals.models.parts import (
    Functional,
    symbolic_inputs,
    symbolic_outputs,
)

#: What Keras's `__init__` sets and a model may have changed since.
_INIT_ATTRIBUTES = (
    "_auto_config",
    "_build_shapes_dict",
    "_dtype_policy",
    "_input_spec",
    "_path",
    "_supports_masking",
    "_trainable",
    "activity_regularizer",
    "autocast",
    "built",
    "supports_jit",
)
#: What `compile` sets. It is not shared: each model is compiled for itself.
_COMPILE_ATTRIBUTES = (
    "_compile_config",
    "_compiled_trainable_state",
    "jit_compile",
    "optimizer",
    "stop_training",
)


def make_twin(model, cls, base):
    """Return a `cls`, not compiled, with the attributes of a built model."""
    # `base.__init__` is called, that of the model's class is not. Attributes
    # are copied as they are now; what they refer to is shared.
    twin = cls.__new__(cls)
    # Tracked before all else, so that the weights come in the same order.
    for _, tracked in model._tracker.config.values():
        for value in tracked:
            twin._tracker.track(value)
    _initialize(twin, model, base)
    skipped = {*vars(twin), *_COMPILE_ATTRIBUTES}
    for name, value in vars(model).items():
        if name in _INIT_ATTRIBUTES:
            object.__setattr__(twin, name, value)
        elif name not in skipped and not name.startswith("_self_"):
            setattr(twin, name, value)
    return twin


def _initialize(twin, model, base):
    if isinstance(model, Functional):
        inputs, outputs = symbolic_inputs(model), symbolic_outputs(model)
        Functional.__init__(twin, inputs, outputs, name=model.name)
    elif isinstance(model, keras.Sequential):
        keras.Sequential.__init__(twin, list(model._layers), name=model.name)
    else:
        base.__init__(twin, name=model.name)


def derived_class(cls, front, back):
    """Return a class derived from `front`, `cls` and `back`, in this order."""
    # Its `original_class` is `cls`, or that of `cls` if it is derived already.
    if issubclass(cls, front):
        cls = cls.original_class
    return _derived_class(cls, front, back)


@functools.cache
def _derived_class(original, front, back):
    namespace = {"original_class": original, "__doc__": original.__doc__}
    namespace["__module__"] = front.__module__
    bases = front, original, back
    return type(f"PerGrad{original.__name__}", bases, namespace)


def saved_as(cls, loader):
    """Have Keras save objects of a class under a name that `loader` loads."""
    # The later registration wins for loading; saving looks up the class.
    for saved_class in (cls, loader):
        name = loader.__name__.lstrip("_")
        keras.saving.register_keras_serializable(PACKAGE, name)(saved_class)


@contextlib.contextmanager
def as_original(model: Any):
    """Let a model be one of its `original_class` inside, as for saving it."""
    derived = type(model)
    object.__setattr__(model, "__class__", derived.original_class)
    try:
        yield
    finally:
        object.__setattr__(model, "__class__", derived)
