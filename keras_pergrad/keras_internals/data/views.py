"""Several views of each sample, whose losses and gradients are averaged.

A batch of n samples with K views each has inputs of shape (n, K, ...), so that
its first axis counts the samples, as that of any other batch. A model is
called for n·K rows, K of each sample in turn.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_pergrad.common.batches import first_tensor, map_tensors
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    logits_behind,
    mask_of,
    set_logits,
    set_mask,
)


class Views(NamedTuple):
    """A structure of tensors (n, K, ...): K views of each of n samples."""

    tensors: Any


def count_views(*parts):
    """Return K of the first of some parts that has views, else None."""
    views = next((part for part in parts if isinstance(part, Views)), None)
    return None if views is None else first_tensor(views).shape[1]


def without_mark(part):
    """Return the tensors (n, K, ...) of a `Views`, anything else as it is."""
    return part.tensors if isinstance(part, Views) else part


def flatten_views(views):
    """Return the structure of a `Views` with n·K rows in its tensors."""
    return map_tensors(lambda t: _reshape(t, 2, [-1]), views.tensors)


def split_rows(structure, count):
    """Return tensors with n·K rows as `Views`."""
    return Views(map_tensors(lambda t: split(t, count), structure))


def split(tensor, count):
    """Return a tensor with n·K rows as one of shape (n, K, ...)."""
    return _reshape(tensor, 1, [-1, count])


def _reshape(tensor, leading, sizes):
    """Replace the first `leading` axes, also of the mask and the logits."""
    inner = tensor.shape[leading:]
    if inner.is_fully_defined():
        shape = [*sizes, *inner]
    else:
        shape = tf.concat([sizes, tf.shape(tensor)[leading:]], 0)
    result = tf.reshape(tensor, shape)
    result.set_shape([*result.shape[: len(sizes)], *inner])
    for get, put in ((mask_of, set_mask), (logits_behind, set_logits)):
        attached = get(tensor)
        if attached is not None:
            put(result, _reshape(attached, leading, sizes))
    return result


def call_views(model, x, training=True):
    """Return `call_model(model, x)`; of `Views` the outputs are `Views`."""
    if not isinstance(x, Views):
        return call_model(model, x, training)
    outputs = call_model(model, flatten_views(x), training)
    return split_rows(outputs, count_views(x))


def rows_of_views(x, y, y_pred, *, sample_weight):
    """Return a batch; of `Views` as one of rows with targets of their own."""
    count = count_views(x, y_pred)
    if count is None:
        return x, y, y_pred, sample_weight

    def rows(part):
        return flatten_views(part) if isinstance(part, Views) else part

    def repeated(part):
        return map_tensors(lambda t: tf.repeat(t, count, axis=0), part)

    return rows(x), repeated(y), rows(y_pred), repeated(sample_weight)
