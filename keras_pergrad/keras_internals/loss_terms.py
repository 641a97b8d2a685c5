"""The terms of Keras's loss of a batch, each with a name.

A term is one entry of the compiled loss, times its loss weight, or what one
layer gave to `add_loss`. Keras minimises their sum and weight regularisers.

Private names in use: `CompileLoss._flat_losses`, `CompileLoss.dtype`.
"""

import contextlib

import tensorflow as tf
from keras import ops

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_parts import (
    compiled_loss,
    entries_of,
    layers_of,
    own_losses,
)
from keras_pergrad.keras_internals.op_marks import whole_loss

#: What stands before the name of a layer that calls `add_loss`.
ADDED = "add_loss/"


def added(layer):
    """Return the name of what a layer gives to `add_loss`."""
    return ADDED + layer.name


def names(model):
    """Return a name for each compiled loss, in Keras's order."""
    entries = entries_of(compiled_loss(model))
    found = [entry.name for entry in entries]
    if len(set(found)) == len(found):
        return found
    # Several losses of one output, or outputs without a name.
    found = [
        name if found.count(name) == 1 else _joined(name, entry.loss.name)
        for name, entry in zip(found, entries)
    ]
    return [
        name if found.count(name) == 1 else f"{name}_{found[:k].count(name)}"
        for k, name in enumerate(found)
    ]


def _joined(name, loss):
    return name if name == loss else f"{name}_{loss}"


@contextlib.contextmanager
def noting_values(model, noted):
    """Put the value of each compiled loss into a dict by its index.

    Each is marked as a loss for itself.
    """
    compiled = compiled_loss(model)
    entries = [
        entry._replace(loss=_Noting(entry.loss, k, noted))
        for k, entry in enumerate(entries_of(compiled))
    ]
    if not entries:
        yield
        return
    with attribute(compiled, "_flat_losses", entries):
        yield


class _Noting:
    """A loss whose value is noted."""

    def __init__(self, loss, index, noted):
        self._loss, self._index, self._noted = loss, index, noted

    def __call__(self, *args):
        value = whole_loss(self._loss(*args))
        self._noted[self._index] = value
        return value


def terms_of(model, y, y_pred, noted):
    """Return the terms of a loss, by name, from the noted values."""
    compiled = compiled_loss(model)
    terms = {}
    for k, (name, entry) in enumerate(
        zip(names(model), entries_of(compiled), strict=True)
    ):
        if k not in noted or (k and is_one_output(y, y_pred)):
            continue  # Keras minimises the first loss of a single output.
        value = ops.cast(noted[k], dtype=compiled.dtype)
        if entry.loss_weights is not None:
            value = ops.multiply(value, entry.loss_weights)
        terms[name] = value
    for layer in layers_of(model):
        for loss in own_losses(layer):
            name, value = added(layer), tf.reduce_sum(loss)
            before = terms.get(name)
            terms[name] = value if before is None else before + value
    return terms


def is_one_output(y, y_pred):
    """Whether Keras takes targets and outputs for those of one output."""
    return not tf.nest.is_nested(y) and not tf.nest.is_nested(y_pred)
