"""Inner products of samples' gradients of one table, by the ids they share."""

import tensorflow as tf

from keras_pergrad.keras_internals.xla import in_xla


def products_of_all(ids, dz):
    """Return the inner products of all pairs of samples, (n, n).

    Rows of equal ids of a sample are added. Of all samples they are put in the
    order of their ids, so that those to be multiplied stand side by side, at
    most n of them: each is multiplied by the next, by the next but one, and so
    on until no pair shares an id.

    Args:
        ids: (n, positions), integers of at least 0.
        dz: (n, positions, d).
    """
    n = tf.shape(ids)[0]
    ids, samples, rows = _entries(ids, dz, n)
    count = tf.size(ids)

    def added(total, k, meets):
        places = tf.range(count)
        if not in_xla():
            places = tf.boolean_mask(places, meets)
        others = tf.minimum(places + k, count - 1)
        met = tf.gather(rows, places) * tf.gather(rows, others)
        products = tf.reduce_sum(met, 1)
        if in_xla():
            products = tf.where(meets, products, tf.zeros_like(products))
        pairs = tf.gather(samples, places) * n + tf.gather(samples, others)
        return total + tf.math.unsorted_segment_sum(products, pairs, n * n)

    def meeting(k):
        """Return which entries share their id with that k places behind."""
        others = tf.minimum(tf.range(count) + k, count - 1)
        meets = ids == tf.gather(ids, others)
        meets &= (tf.range(count) + k < count) & (ids >= 0)
        meets.set_shape([None])
        return meets

    def go_on(k, meets, total):
        return tf.reduce_any(meets)

    def step(k, meets, total):
        return k + 1, meeting(k + 1), added(total, k, meets)

    start = tf.constant(1), meeting(1), tf.zeros([n * n], rows.dtype)
    some = tf.TensorShape([None])
    shapes = tf.TensorShape([]), some, some
    total = tf.while_loop(go_on, step, start, shapes, parallel_iterations=1)[2]
    total = tf.reshape(total, [n, n])
    squares = tf.reduce_sum(tf.square(rows), 1)
    own = tf.math.unsorted_segment_sum(squares, samples, n)
    return tf.linalg.set_diag(total + tf.transpose(total), own)


def _entries(ids, dz, n):
    """Return ids, samples and rows, one entry for each id of a sample.

    They are in the order of the ids. Where XLA compiles, there are as many as
    positions; entries behind the last have the id -1.
    """
    samples = tf.range(tf.cast(n, tf.int64))[:, None]
    keys = tf.cast(ids, tf.int64) * tf.cast(n, tf.int64) + samples
    keys = tf.reshape(keys, [-1])
    order = tf.argsort(keys)
    keys = tf.gather(keys, order)
    rows = tf.gather(tf.reshape(dz, [-1, dz.shape[-1]]), order)
    new = tf.concat([keys[:1] >= 0, keys[1:] != keys[:-1]], 0)
    entries = tf.cumsum(tf.cast(new, tf.int32)) - 1
    if in_xla():
        count = tf.size(keys)
        keys = tf.math.unsorted_segment_max(keys, entries, count)
        keys = tf.maximum(keys, -1)
    else:
        count = tf.math.count_nonzero(new, dtype=tf.int32)
        keys = tf.boolean_mask(keys, new)
    rows = tf.math.unsorted_segment_sum(rows, entries, count)
    keys.set_shape([None])
    n = tf.cast(n, tf.int64)
    ids = tf.where(keys >= 0, keys // n, keys)
    samples = tf.where(keys >= 0, keys % n, tf.zeros_like(keys))
    return ids, tf.cast(samples, tf.int32), rows
