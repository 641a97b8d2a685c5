"""Squared norms of a table's gradients: a sample's equal ids are added up."""

import tensorflow as tf

#: Rows are added one by one. Where more than 4 of 5 positions meet an id for
#: the first time, only the others are worth looking for.
MOSTLY_NEW = 4, 5
#: A hash table of so many positions stays in a core's cache, and one of other
#: samples is made beside it; more than so many cost more than they save.
OF_ONE_TABLE, TABLES = 2**12, 8


def squares_by_hash(ids, dz, rows):
    """Return ‖Σ of dz of equal ids‖² of each sample, by hash tables, (n,).

    Args:
        ids: (n, positions), integers of at least 0 and below `rows`.
        dz: (n, positions, d).
        rows: how many rows the table has.
    """
    known = ids.shape.num_elements()
    if known is not None and known < 2 * OF_ONE_TABLE:
        return _squares_by_one(ids, dz, rows, ids.shape[0])
    n = tf.shape(ids)[0]
    tables = tf.minimum(tf.size(ids) // OF_ONE_TABLE, n)
    tables = tf.clip_by_value(tables, 1, TABLES)
    samples = -(-n // tables)

    def add(k, squares):
        # What bounds a slice bounds what a prediction of memory sees.
        some_ids, some_dz = (t[k * samples :][:samples] for t in (ids, dz))
        own = _squares_by_one(some_ids, some_dz, rows, ids.shape[0])
        return k + 1, squares.write(k, own)

    squares = tf.TensorArray(
        dz.dtype, tables, infer_shape=False, element_shape=[None]
    )
    _, squares = tf.while_loop(
        lambda k, _: k < tables, add, (0, squares), parallel_iterations=TABLES
    )
    squares = squares.concat()
    squares.set_shape(ids.shape[:1])
    return squares


def _squares_by_one(ids, dz, rows, most):
    """Return the same by one table; at most `most` samples, if it is known."""
    n, positions = (
        tf.shape(ids)[axis] if size is None else size
        for axis, size in enumerate(ids.shape)
    )
    segments, counts = _equal(ids, n, rows, most)
    dz = tf.reshape(dz, [-1, dz.shape[-1]])
    part, whole = MOSTLY_NEW
    least = n * positions // whole * part

    def of_all():
        # Segments are in the order of their first positions.
        added = tf.math.unsorted_segment_sum(dz, segments, tf.size(counts))
        samples = _samples(tf.range(n * positions), segments, tf.size(counts))
        return _by_sample(added, samples)

    def of_few():
        several = counts > 1
        meets = tf.gather(several, segments)
        # Two for each position that meets its id again, at most: what the
        # shapes tell of it bounds the memory.
        places = tf.where(meets)[: 2 * (n * positions - least), 0]
        numbers = tf.cumsum(tf.cast(several, tf.int32)) - 1
        groups = tf.gather(numbers, tf.gather(segments, places))
        count = tf.math.count_nonzero(several, dtype=tf.int32)
        added = tf.math.unsorted_segment_sum(
            tf.gather(dz, places), groups, count
        )
        squares = tf.reduce_sum(tf.square(dz), 1)
        alone = tf.where(meets, tf.zeros([], squares.dtype), squares)
        alone = tf.reduce_sum(tf.reshape(alone, [n, positions]), 1)
        samples = _samples(tf.cast(places, tf.int32), groups, count)
        return alone + _by_sample(added, samples)

    def _samples(places, groups, count):
        return tf.math.unsorted_segment_max(places // positions, groups, count)

    def _by_sample(added, samples):
        squares = tf.reduce_sum(tf.square(added), 1)
        return tf.math.unsorted_segment_sum(squares, samples, n)

    return tf.cond(tf.size(counts) > least, of_few, of_all)


def own_ids(ids, n, rows, dtype):
    """Return flat ids that are separate for each sample: below n · rows."""
    firsts = tf.range(tf.cast(n, dtype))[:, None] * tf.cast(rows, dtype)
    return tf.reshape(tf.cast(ids, dtype) + firsts, [-1])


def _equal(ids, n, rows, most):
    """Return a segment for each position, and how many each segment has.

    Narrow keys are hashed in half the time, where the samples' numbers fit.
    """

    def hashed(dtype):
        return tf.unique_with_counts(own_ids(ids, n, rows, dtype))[1:]

    fit = tf.int32.max // (rows + 1)
    if fit and most is not None:
        return hashed(tf.int32 if most <= fit else tf.int64)
    if not fit:
        return hashed(tf.int64)
    return tf.cond(n <= fit, lambda: hashed(tf.int32), lambda: hashed(tf.int64))
