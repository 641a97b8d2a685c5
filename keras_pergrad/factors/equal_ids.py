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
    ids, samples, rows = _merge_equal_ids(ids, dz, n)
    sum_pairs = _by_distance if in_xla() else _by_pairs
    total = tf.reshape(sum_pairs(ids, samples, rows, n=n), [n, n])
    squares = tf.reduce_sum(tf.square(rows), 1)
    diagonal = tf.math.unsorted_segment_sum(squares, samples, n)
    return tf.linalg.set_diag(total + tf.transpose(total), diagonal)


def _by_pairs(ids, samples, rows, *, n):
    """Return the products of entries of one id, added for samples, (n²,).

    The pairs are counted through, and multiplied as many at a time as there
    are entries.
    """
    count = tf.size(ids)
    groups = tf.cumsum(tf.cast(_is_first(ids), tf.int32)) - 1
    ends = tf.cumsum(tf.math.bincount(groups))
    later_equals = tf.gather(ends, groups) - 1 - tf.range(count)
    # How many pairs begin at each entry or before it.
    pair_ends = tf.cumsum(tf.cast(later_equals, tf.int64))
    pairs, step = tf.reduce_max(pair_ends), tf.cast(count, tf.int64)

    def add_chunk(first, total):
        numbers = tf.range(first, tf.minimum(first + step, pairs))
        # Pair p begins at the first entry whose `pair_ends` is above p.
        left = tf.searchsorted(pair_ends, numbers, side="right")
        right = left + tf.cast(tf.gather(pair_ends, left) - numbers, tf.int32)
        products = tf.gather(rows, left) * tf.gather(rows, right)
        pair_ids = tf.gather(samples, left) * n + tf.gather(samples, right)
        chunk_total = tf.math.unsorted_segment_sum(
            tf.reduce_sum(products, 1), pair_ids, n * n
        )
        chunk_total.set_shape(total.shape)
        return first + step, total + chunk_total

    start = tf.zeros([], tf.int64), tf.zeros([n * n], rows.dtype)
    return tf.while_loop(
        lambda first, _: first < pairs, add_chunk, start, parallel_iterations=1
    )[1]


def _by_distance(ids, samples, rows, *, n):
    """Return the products as `_by_pairs`, where all shapes must be known.

    Each entry is multiplied by the next, by the next but one, and so on until
    no pair shares an id.
    """
    count = tf.size(ids)

    def add_products(total, k, shares_id):
        indices = tf.range(count)
        later = tf.minimum(indices + k, count - 1)
        products = tf.reduce_sum(rows * tf.gather(rows, later), 1)
        products = tf.where(shares_id, products, tf.zeros_like(products))
        pair_ids = samples * n + tf.gather(samples, later)
        return total + tf.math.unsorted_segment_sum(products, pair_ids, n * n)

    def sharing_ids(k):
        """Return which entries have the id of the entry k places later."""
        later = tf.minimum(tf.range(count) + k, count - 1)
        shares_id = ids == tf.gather(ids, later)
        shares_id &= (tf.range(count) + k < count) & (ids >= 0)
        shares_id.set_shape([None])
        return shares_id

    def any_sharing(k, shares_id, total):
        return tf.reduce_any(shares_id)

    def step(k, shares_id, total):
        return k + 1, sharing_ids(k + 1), add_products(total, k, shares_id)

    start = tf.constant(1), sharing_ids(1), tf.zeros([n * n], rows.dtype)
    vector_shape = tf.TensorShape([None])
    shapes = tf.TensorShape([]), vector_shape, vector_shape
    return tf.while_loop(
        any_sharing, step, start, shapes, parallel_iterations=1
    )[2]


def _is_first(keys):
    """Return which of sorted keys are the first of their kind."""
    return tf.concat(
        [tf.ones_like(keys[:1], tf.bool), keys[1:] != keys[:-1]], 0
    )


def _merge_equal_ids(ids, dz, n):
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
    is_first = _is_first(keys)
    entries = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    if in_xla():
        count = tf.size(keys)
        keys = tf.math.unsorted_segment_max(keys, entries, count)
        keys = tf.maximum(keys, -1)
        rows = tf.math.unsorted_segment_sum(rows, entries, count)
    else:
        keys = tf.boolean_mask(keys, is_first)
        rows = tf.math.segment_sum(rows, entries)
    keys.set_shape([None])
    n = tf.cast(n, tf.int64)
    ids = tf.where(keys >= 0, keys // n, keys)
    samples = tf.where(keys >= 0, keys % n, tf.zeros_like(keys))
    return ids, tf.cast(samples, tf.int32), rows
