"""Traced functions, kept as long as their model and as what they depend on.

Private names in use: `Model._compile_loss`, `Layer._flatten_layers`.
"""

import weakref

from keras_pergrad.samples.layer_rules.rule_registry import find_rule

_TRACED = weakref.WeakKeyDictionary()


def kept(model, key, make):
    """Get what `make()` gave before for this key and the model as it is now."""
    traced = _TRACED.setdefault(model, {})
    key, parts = (*key, *_settings(model)), _parts(model)
    function, references = traced.get(key, (None, []))
    # An id would not do: a new object may get that of one that is gone.
    if function is None or any(
        reference() is not part for reference, part in zip(references, parts)
    ):
        function = make()
        traced[key] = function, [weakref.ref(part) for part in parts]
    return function


def _settings(model):
    """Return what a trace depends on and is compared by value."""
    return (
        len(model.trainable_variables),
        *((one.trainable, find_rule(one)) for one in model._flatten_layers()),
    )


def _parts(model):
    """Return the objects that a trace depends on."""
    loss, variables = model._compile_loss, model.trainable_variables
    # Without a loss a model may still add some.
    return [model if loss is None else loss, *variables]
