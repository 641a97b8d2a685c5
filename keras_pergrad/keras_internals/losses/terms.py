"""The terms of a loss: the compiled losses, and what layers add.

A term is one entry of the compiled loss, times its loss weight, or what one
layer gave to `add_loss`. Keras minimises their sum and weight regularisers.

Private name in use: `CompileLoss.dtype`.
"""

import tensorflow as tf
from keras import ops

from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    entries_of,
    layers_of,
    own_losses,
)

#: What stands before the name of a layer that calls `add_loss`.
ADDED = "add_loss/"


def added_term_name(layer):
    """Return the name of what a layer gives to `add_loss`."""
    return ADDED + layer.name


def term_names(model):
    """Return a name for each compiled loss, in Keras's order."""
    entries = entries_of(compiled_loss(model))
    term_names = [entry.name for entry in entries]
    if len(set(term_names)) == len(term_names):
        return term_names
    # Several losses of one output, or outputs without a name.
    term_names = [
        name
        if term_names.count(name) == 1
        else _join_names(name, entry.loss.name)
        for name, entry in zip(term_names, entries)
    ]
    return [
        name
        if term_names.count(name) == 1
        else f"{name}_{term_names[:k].count(name)}"
        for k, name in enumerate(term_names)
    ]


def _join_names(name, loss):
    return name if name == loss else f"{name}_{loss}"


def terms_of(model, y, y_pred, *, recorded):
    """Return the terms of a loss, by name, from its recorded values."""
    compiled = compiled_loss(model)
    terms = {}
    for k, (name, entry) in enumerate(
        zip(term_names(model), entries_of(compiled), strict=True)
    ):
        if k not in recorded or (k and is_one_output(y, y_pred)):
            continue  # Keras minimises the first loss of a single output.
        value = ops.cast(recorded[k], dtype=compiled.dtype)
        if entry.loss_weights is not None:
            value = ops.multiply(value, entry.loss_weights)
        terms[name] = value
    for layer in layers_of(model):
        for loss in own_losses(layer):
            name, value = added_term_name(layer), tf.reduce_sum(loss)
            previous = terms.get(name)
            terms[name] = value if previous is None else previous + value
    return terms


def is_one_output(y, y_pred):
    """Whether Keras takes targets and outputs for those of one output."""
    return not tf.nest.is_nested(y) and not tf.nest.is_nested(y_pred)
