"""Gradients of embedding tables in which no id has two gradients.

Keras's optimizers take the rows of a `tf.IndexedSlices` one by one: Adam adds
up the squares of an id's parts, where its formula has the square of their sum.
"""

import tensorflow as tf


def for_optimizer(gradients, checks=()):
    """Return gradients with one row for each id, once all are computed.

    No weight changes before every check inside them, and of `checks`, has
    passed.
    """
    gradients = [
        _added(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients
    ]
    return tf.tuple(gradients, control_inputs=checks)


def _added(slices):
    """Return the same gradient; an id's sum stands where it comes last."""
    # Rows of an id that come before become zero, so that all sizes stay as
    # they are: XLA must know them.
    ids, rows = slices.indices, slices.shape[0]
    if None not in (rows, ids.shape[0]) and rows <= ids.shape[0]:
        return tf.convert_to_tensor(slices)
    if rows is None:
        rows = slices.dense_shape[0]
    count = tf.size(ids)
    places = tf.range(count)
    last = tf.math.unsorted_segment_max(places, ids, rows)
    # Ids of no row, which a GPU and XLA pass over, stay alone.
    known = (ids >= 0) & (ids < tf.cast(rows, ids.dtype))
    places = tf.where(known, tf.gather(last, tf.where(known, ids, 0)), places)
    values = tf.math.unsorted_segment_sum(slices.values, places, count)
    values.set_shape(slices.values.shape)
    return tf.IndexedSlices(values, ids, slices.dense_shape)
