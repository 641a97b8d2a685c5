"""A cache of traced functions, valid while model and parts are the same."""

import weakref

from keras_pergrad.keras_internals.models.parts import compiled_loss, layers_of
from keras_pergrad.uses.layer_rules.registry import find_rule

_TRACED = weakref.WeakKeyDictionary()


def kept(model, key, make):
    """Return what `make()` gave for this key, unless the model has changed."""
    traced = _TRACED.setdefault(model, {})
    key, parts = (*key, *_settings(model)), _parts(model)
    function, references = traced.get(key, (None, []))
    # Ids are not enough: a new object may get the id of a deleted one.
    if function is None or any(
        reference() is not part for reference, part in zip(references, parts)
    ):
        function = make()
        traced[key] = function, [weakref.ref(part) for part in parts]
    return function


def _settings(model):
    """Return the settings that a trace depends on; compared by value."""
    return (
        len(model.trainable_variables),
        *((layer.trainable, find_rule(layer)) for layer in layers_of(model)),
    )


def _parts(model):
    """Return the objects that a trace depends on; compared by identity."""
    loss, variables = compiled_loss(model), model.trainable_variables
    # A model without a compiled loss may still add losses.
    return [model if loss is None else loss, *variables]
