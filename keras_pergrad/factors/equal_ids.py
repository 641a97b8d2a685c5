"""Inner products of samples' gradients of one table, by the ids they share."""

import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.settings import in_xla


def products_of_all(ids, dz):
    """Return the inner products of all pairs of samples, (n, n).

    Rows of equal ids of a sample are added. Of all samples they are put in the
    order of their ids, so that those to be multiplied stand side by side, at
    most n of them.

    Args:
        ids: (n, positions), integers of at least 0.
        dz: (n, positions, d).
    """
    n = tf.shape(ids)[0]
    ids, samples, rows = _entries(ids, dz, n)
    of_pairs = _by_distance if in_xla() else _by_pairs
    total = tf.reshape(of_pairs(ids, samples, rows, n), [n, n])
    squares = tf.reduce_sum(tf.square(rows), 1)
    own = tf.math.unsorted_segment_sum(squares, samples, n)
    return tf.linalg.set_diag(total + tf.transpose(total), own)


def _by_pairs(ids, samples, rows, n):
    """Return the products of entries of one id, added for samples, (n²,).

    The pairs are counted through, and multiplied as many at a time as there
    are entries.
    """
    count = tf.size(ids)
    groups = tf.cumsum(tf.cast(_is_new(ids), tf.int32)) - 1
    ends = tf.cumsum(tf.math.bincount(groups))
    behind = tf.gather(ends, groups) - 1 - tf.range(count)
    # How many pairs there are up to each entry, with those that it begins.
    stops = tf.cumsum(tf.cast(behind, tf.int64))
    pairs, step = tf.reduce_max(stops), tf.cast(count, tf.int64)

    def added(first, total):
        numbers = tf.range(first, tf.minimum(first + step, pairs))
        one = tf.searchsorted(stops, numbers, side="right")
        other = one + tf.cast(tf.gather(stops, one) - numbers, tf.int32)
        products = tf.gather(rows, one) * tf.gather(rows, other)
        places = tf.gather(samples, one) * n + tf.gather(samples, other)
        more = tf.math.unsorted_segment_sum(
            tf.reduce_sum(products, 1), places, n * n
        )
        more.set_shape(total.shape)
        return first + step, total + more

    start = tf.zeros([], tf.int64), tf.zeros([n * n], rows.dtype)
    return tf.while_loop(
        lambda first, _: first < pairs, added, start, parallel_iterations=1
    )[1]


def _by_distance(ids, samples, rows, n):
    """Return the same where all shapes must be known.

    Each entry is multiplied by the next, by the next but one, and so on until
    no pair shares an id.
    """
    count = tf.size(ids)

    def added(total, k, meets):
        places = tf.range(count)
        others = tf.minimum(places + k, count - 1)
        products = tf.reduce_sum(rows * tf.gather(rows, others), 1)
        products = tf.where(meets, products, tf.zeros_like(products))
        pairs = samples * n + tf.gather(samples, others)
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
    return tf.while_loop(go_on, step, start, shapes, parallel_iterations=1)[2]


def _is_new(keys):
    """Return which of sorted keys are the first of their kind."""
    return tf.concat(
        [tf.ones_like(keys[:1], tf.bool), keys[1:] != keys[:-1]], 0
    )


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
    new = _is_new(keys)
    entries = tf.cumsum(tf.cast(new, tf.int32)) - 1
    if in_xla():
        count = tf.size(keys)
        keys = tf.math.unsorted_segment_max(keys, entries, count)
        keys = tf.maximum(keys, -1)
        rows = tf.math.unsorted_segment_sum(rows, entries, count)
    else:
        keys = tf.boolean_mask(keys, new)
        rows = tf.math.segment_sum(rows, entries)
    keys.set_shape([None])
    n = tf.cast(n, tf.int64)
    ids = tf.where(keys >= 0, keys // n, keys)
    samples = tf.where(keys >= 0, keys % n, tf.zeros_like(keys))
    return ids, tf.cast(samples, tf.int32), rows
