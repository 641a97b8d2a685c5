"""Squared norms of a table's gradients: a sample's equal ids are added up."""

import tensorflow as tf

from keras_pergrad.factors.written_out import sizes_of

#: Rows are added one by one. Where more than 4 of 5 positions meet an id for
#: the first time, only the others are worth looking for.
MOSTLY_NEW = 4, 5
#: A hash table of so many positions stays in a core's cache, and one of other
#: samples is made beside it; more than so many cost more than they save.
POSITIONS_PER_TABLE, MAX_TABLES = 2**12, 8


def squares_by_hash(ids, dz, rows):
    """Return ‖Σ of dz of equal ids‖² of each sample, by hash tables, (n,).

    Args:
        ids: (n, positions), integers of at least 0 and below `rows`.
        dz: (n, positions, d).
        rows: how many rows the table has.
    """
    static_count = ids.shape.num_elements()
    if static_count is not None and static_count < 2 * POSITIONS_PER_TABLE:
        return _squares_by_table(ids, dz, rows, max_samples=ids.shape[0])
    n = tf.shape(ids)[0]
    tables = tf.minimum(tf.size(ids) // POSITIONS_PER_TABLE, n)
    tables = tf.clip_by_value(tables, 1, MAX_TABLES)
    samples = -(-n // tables)

    def add(k, squares):
        # Slices with bounds let a prediction of memory see their size.
        some_ids, some_dz = (t[k * samples :][:samples] for t in (ids, dz))
        table_squares = _squares_by_table(
            some_ids, some_dz, rows, max_samples=ids.shape[0]
        )
        return k + 1, squares.write(k, table_squares)

    squares = tf.TensorArray(
        dz.dtype, tables, infer_shape=False, element_shape=[None]
    )
    _, squares = tf.while_loop(
        lambda k, _: k < tables,
        add,
        (0, squares),
        parallel_iterations=MAX_TABLES,
    )
    squares = squares.concat()
    squares.set_shape(ids.shape[:1])
    return squares


def _squares_by_table(ids, dz, rows, *, max_samples):
    """Return the squared norms of some samples, by one hash table.

    There are at most `max_samples` of them; None: not known.
    """
    n, positions = sizes_of(ids)
    segments, counts = _equal_segments(ids, rows, max_samples)
    dz = tf.reshape(dz, [-1, dz.shape[-1]])
    new_part, of_parts = MOSTLY_NEW
    min_segments = n * positions // of_parts * new_part

    def sum_all():
        # Segments are in the order of their first positions.
        sums = tf.math.unsorted_segment_sum(dz, segments, tf.size(counts))
        samples = _samples(tf.range(n * positions), segments, tf.size(counts))
        return _by_sample(sums, samples)

    def sum_repeated():
        is_repeated = counts > 1
        has_equal = tf.gather(is_repeated, segments)
        # Two for each position that meets its id again, at most: what the
        # shapes tell of it bounds the memory.
        indices = tf.where(has_equal)[: 2 * (n * positions - min_segments), 0]
        group_numbers = tf.cumsum(tf.cast(is_repeated, tf.int32)) - 1
        groups = tf.gather(group_numbers, tf.gather(segments, indices))
        count = tf.math.count_nonzero(is_repeated, dtype=tf.int32)
        sums = tf.math.unsorted_segment_sum(
            tf.gather(dz, indices), groups, count
        )
        squares = tf.reduce_sum(tf.square(dz), 1)
        single_squares = tf.where(
            has_equal, tf.zeros([], squares.dtype), squares
        )
        single_squares = tf.reduce_sum(
            tf.reshape(single_squares, [n, positions]), 1
        )
        samples = _samples(tf.cast(indices, tf.int32), groups, count)
        return single_squares + _by_sample(sums, samples)

    def _samples(indices, groups, count):
        return tf.math.unsorted_segment_max(indices // positions, groups, count)

    def _by_sample(sums, samples):
        squares = tf.reduce_sum(tf.square(sums), 1)
        return tf.math.unsorted_segment_sum(squares, samples, n)

    return tf.cond(tf.size(counts) > min_segments, sum_repeated, sum_all)


def ids_by_sample(ids, rows, dtype):
    """Return flat ids that are separate for each sample: below n · rows."""
    n, _ = sizes_of(ids)
    # A CUDA card's int32 is the host's, so the sizes do not wait for the card.
    firsts = tf.cast(tf.range(n)[:, None], dtype) * tf.cast(rows, dtype)
    return tf.reshape(tf.cast(ids, dtype) + firsts, [-1])


def _equal_segments(ids, rows, max_samples):
    """Return a segment for each position, and how many each segment has.

    Narrow keys are hashed in half the time, where the samples' numbers fit.
    """

    def hash_ids(dtype):
        return tf.unique_with_counts(ids_by_sample(ids, rows, dtype))[1:]

    max_fitting = tf.int32.max // (rows + 1)
    if max_fitting and max_samples is not None:
        return hash_ids(tf.int32 if max_samples <= max_fitting else tf.int64)
    if not max_fitting:
        return hash_ids(tf.int64)
    n, _ = sizes_of(ids)
    return tf.cond(
        n <= max_fitting,
        lambda: hash_ids(tf.int32),
        lambda: hash_ids(tf.int64),
    )
