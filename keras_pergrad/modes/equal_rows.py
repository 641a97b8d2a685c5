"""Gradients of embedding tables, with the rows of an id added up.

Keras's optimizers take the rows of a `tf.IndexedSlices` one by one: Adam adds
up the squares of an id's parts, where its formula has the square of their sum.
"""

import tensorflow as tf

#: A gradient of at most so many numbers is made dense, which costs no more.
SMALL = 2**18


def for_optimizer(gradients, checks=()):
    """Return gradients with the rows of an id added up, once all are computed.

    No weight changes before every check inside them, and of `checks`, has
    passed.
    """
    gradients = [
        _added(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients
    ]
    return tf.tuple(gradients, control_inputs=checks)


def _added(slices):
    """Return the same gradient; an id's sum stands where it comes last."""
    size = slices.shape.num_elements()
    if size is not None and size <= SMALL:
        return tf.convert_to_tensor(slices)
    # Rows of an id that come before become zero, so that all sizes stay as
    # they are: XLA must know them.
    ids, rows = slices.indices, slices.dense_shape[0]
    count = tf.size(ids)
    places = tf.range(count)
    last = tf.math.unsorted_segment_max(places, ids, rows)
    # Ids of no row, which a GPU and XLA pass over, stay alone.
    known = (ids >= 0) & (ids < tf.cast(rows, ids.dtype))
    places = tf.where(known, tf.gather(last, tf.where(known, ids, 0)), places)
    values = tf.math.unsorted_segment_sum(slices.values, places, count)
    values.set_shape(slices.values.shape)
    return tf.IndexedSlices(values, ids, slices.dense_shape)
