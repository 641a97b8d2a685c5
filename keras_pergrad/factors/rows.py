"""Factors of look-ups: rows of a table for each sample."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.equal_ids import products_of_all
from keras_pergrad.factors.hashed_ids import ids_by_sample, squares_by_hash
from keras_pergrad.factors.written_out import (
    expand,
    held_bytes,
    sizes_of,
    squares_by_sample,
    wide,
)
from keras_pergrad.keras_internals.tensorflow.devices import has_cuda_card
from keras_pergrad.keras_internals.tensorflow.settings import in_xla

METHODS = ("whole", "unique", "table", "compare", "sort")
#: A table of places for each sample, or of pairs of positions, has at most so
#: many for each number of dz.
PLACES_PER_NUMBER = 4
#: Above it, comparing all pairs of positions costs more than sorting.
MAX_COMPARED = 512
#: Up to this many rows per slice, summing into the whole table is faster.
ROWS_PER_SLICE = 4


class Rows(SampleGradients):
    """Contributions of an embedding: row ids[t] receives dz[t].

    Rows of equal ids in a sample are summed before they are squared, so norms
    are exact. Memory grows with `dz`, never with the vocabulary.

    Args:
        ids: (n, ...) integers.
        dz: (n, ..., d).
        shape: the table's shape, (vocabulary, d).
        whole: the variable's shape, where its rows have several axes.
        method: how equal ids are found, one of `METHODS`; default: tables of
            fewer rows than positions are written out ("whole"); for others a
            hash table has the ids ("unique"). XLA has none, and on a CUDA
            card it takes tens of ops, some of which the host waits for:
            there, a small vocabulary has a table of places ("table"), few
            ids are compared pair by pair, and many are sorted under XLA.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> ids = tf.constant([[0, 0], [1, 2]])
    >>> table = factors.Rows(ids, tf.ones((2, 2, 1)), (5, 1))
    >>> table.squared_norms().numpy()  # 2² in one row, 1² in two
    array([4., 2.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("ids", "dz")

    def __init__(
        self,
        ids: tf.Tensor,
        dz: tf.Tensor,
        shape: Sequence[int],
        *,
        method: str | None = None,
        whole: Sequence[int] | None = None,
    ):
        self.dz: tf.Tensor = dz
        self.ids: tf.Tensor = ids
        if dz.shape.rank != 3 or ids.shape.rank != 2:
            batch = tf.shape(dz)[0]
            positions = tf.reduce_prod(tf.shape(ids)[1:])
            self.dz = tf.reshape(dz, [batch, positions, shape[-1]])
            self.ids = tf.reshape(ids, [batch, positions])
            static_count = ids.shape[1:].num_elements()
            self.dz.set_shape([None, static_count, shape[-1]])
            self.ids.set_shape([None, static_count])
        self.shape: list[int] = list(shape)
        self.whole: list[int] = list(whole or shape)
        self.method: str | None = method

    def chosen_method(self) -> str:
        """How equal ids are found."""
        if self.method:
            return self.method
        positions = self.ids.shape[1]
        if self.shape[0] < (positions or 0):
            return "whole"
        if not in_xla() and not has_cuda_card():
            return "unique"
        held = PLACES_PER_NUMBER * self.shape[-1]
        if self.shape[0] <= held * (positions or 0):
            return "table"
        # Only XLA compares all pairs without an array of them.
        most = MAX_COMPARED if in_xla() else min(MAX_COMPARED, held)
        if positions is not None and positions <= most:
            return "compare"
        return "sort" if in_xla() else "unique"

    def sum_method(self) -> str:
        return "slices"

    def norm_bytes(self, n: int) -> int | None:
        # dz in the order of the ids, and the sums of equal ones.
        dz_bytes = held_bytes(self.dz, n)
        if dz_bytes is None:
            return None
        method, found_by = self.chosen_method(), 0
        if method == "table":
            found_by = tf.int32.size * n * self.shape[0]
        elif method == "compare" and not in_xla():
            positions: Any = self.dz.shape[1]
            found_by = n * positions**2 * (tf.bool.size + tf.float32.size)
        return 2 * dz_bytes + found_by

    def squared_norms(self) -> tf.Tensor:
        if self.ids.shape[1] == 1:
            return squares_by_sample(self.dz)
        if self.chosen_method() == "whole":
            return squares_by_sample(self.materialize())
        if self.chosen_method() == "unique":
            return squares_by_hash(self.ids, self.dz, self.shape[0])
        _, sums = self._by_position()
        n, positions = sizes_of(self.ids)
        return squares_by_sample(
            tf.reshape(sums, [n, positions * self.shape[-1]])
        )

    def sum_of_squares(self) -> tf.IndexedSlices:
        if self.chosen_method() in ("whole", "unique"):
            ids, sums = self._by_hash()
            ids %= self.shape[0]
        else:
            segments, sums = self._by_position()
            ids = tf.reshape(self.ids, [-1])
            ids = tf.math.unsorted_segment_max(ids, segments, tf.size(ids))
            # A segment without a position is zero, in whatever row.
            ids = tf.maximum(ids, 0)
        return self.slices(tf.square(sums), ids)

    def dot(self, direction: Any) -> tf.Tensor:
        if isinstance(direction, tf.IndexedSlices):
            direction_rows = self._gather_slices(direction)
        else:
            direction = tf.cast(direction, self.dz.dtype)
            direction_rows = tf.gather(
                tf.reshape(direction, self.shape), self.ids
            )
        return tf.reduce_sum(direction_rows * self.dz, [1, 2])

    def gram(self, other: SampleGradients | None = None) -> tf.Tensor:
        if other is None or other is self:
            return products_of_all(self.ids, self.dz)
        if not isinstance(other, Rows) or self.whole != other.whole:
            return super().gram(other)

        def with_sample(ids_and_dz):
            ids, dz = ids_and_dz
            return self.dot(tf.IndexedSlices(dz, ids))

        products = tf.map_fn(
            with_sample,
            (other.ids, other.dz),
            fn_output_signature=tf.TensorSpec([None], self.dz.dtype),
        )
        return tf.transpose(products)

    def layout(self) -> tuple[Any, ...]:
        """Return what uses of one table must share to be joined."""
        return (tuple(self.whole),)

    def _gather_slices(self, slices):
        """Return a row of slices for each id, without a table; else zeros."""
        order = tf.argsort(slices.indices)
        ids = tf.cast(tf.gather(slices.indices, order), self.ids.dtype)
        values = tf.gather(tf.cast(slices.values, self.dz.dtype), order)
        count = tf.size(ids)
        # Each place among the sorted ids gets the sum of its equal ones.
        first_equals = tf.searchsorted(ids, ids)
        values = tf.reshape(values, [count, self.shape[-1]])
        values = tf.math.unsorted_segment_sum(values, first_equals, count)
        flat_ids = tf.reshape(self.ids, [-1])
        matches = tf.minimum(tf.searchsorted(ids, flat_ids), count - 1)
        rows = tf.where(
            (tf.gather(ids, matches) == flat_ids)[:, None],
            tf.gather(values, matches),
            tf.zeros([], values.dtype),
        )
        return tf.reshape(rows, tf.shape(self.dz))

    def _by_hash(self):
        """Return all ids, separate for each sample, and the sums of their dz.

        One hash table has them all.
        """
        ids = ids_by_sample(self.ids, self.shape[0], tf.int64)
        unique_ids, segments = tf.unique(ids)
        dz = tf.reshape(self.dz, [-1, self.shape[-1]])
        return unique_ids, tf.math.unsorted_segment_sum(
            dz, segments, tf.size(unique_ids)
        )

    def _by_position(self):
        """Return a segment for each position, and the sums of their dz."""
        method = self.chosen_method()
        if method == "table":
            segments = _last_places(self.ids, self.shape[0])
        else:
            find = _last_equal if method == "compare" else _ranks
            segments = tf.reshape(find(self.ids), [-1])
        dz = tf.reshape(self.dz, [-1, self.shape[-1]])
        return segments, tf.math.unsorted_segment_sum(
            dz, segments, tf.size(self.ids)
        )

    def weighted_sum(self, weights: tf.Tensor | None) -> tf.IndexedSlices:
        dz = self.dz if weights is None else self.dz * expand(weights, self.dz)
        return self.slices(dz, tf.reshape(self.ids, [-1]))

    def slices(self, values: tf.Tensor, ids: tf.Tensor) -> tf.IndexedSlices:
        """Return rows of the variable, in its own shape."""
        values = tf.reshape(values, [-1, *self.whole[1:]])
        return tf.IndexedSlices(values, ids, tf.constant(self.whole))

    def squared_norm_of_sum(self) -> tf.Tensor:
        return squared_norm(self.weighted_sum(None))

    def materialize(self) -> tf.Tensor:
        n, _ = sizes_of(self.ids)
        ids = ids_by_sample(self.ids, self.shape[0], tf.int32)
        values = tf.reshape(self.dz, [-1, self.shape[-1]])
        table = tf.math.unsorted_segment_sum(values, ids, n * self.shape[0])
        return tf.reshape(table, [n, *self.whole])


def _last_places(ids, rows):
    """Return for each position the last one with its id, by a table of all."""
    keys = ids_by_sample(ids, rows, tf.int64)
    n, _ = sizes_of(ids)
    # A size is needed on the host.
    with tf.device(None if in_xla() else "CPU:0"):
        places = tf.cast(n, tf.int64) * rows
    last = tf.math.unsorted_segment_max(tf.range(tf.size(keys)), keys, places)
    return tf.gather(last, keys)


def _last_equal(ids):
    """Return for each position the last one with its id, in flat numbers."""
    n, positions = sizes_of(ids)
    static_count = ids.shape[1]
    # XLA reduces an outer axis twice as fast as the inner one, and narrow
    # numbers faster than wide ones. A CUDA card has no kernel for integers
    # but int64.
    if static_count is None or static_count > 2**15:
        dtype, index = tf.int32, tf.int32
    elif in_xla():
        dtype = tf.uint8 if static_count <= 2**8 else tf.int16
        index = tf.int32
    else:
        dtype, index = tf.float32, tf.int64
    ids = tf.cast(ids, tf.int64) if index == tf.int64 else ids
    equal = ids[:, :, None] == ids[:, None, :]
    numbers = tf.cast(tf.range(positions), dtype)[:, None]
    last = tf.reduce_max(tf.where(equal, numbers, tf.zeros([], dtype)), 1)
    firsts = tf.range(n)[:, None] * positions
    return tf.cast(last, index) + tf.cast(firsts, index)


def _ranks(ids):
    """Return for each position the rank of its id, in flat numbers."""
    n, positions = sizes_of(ids)
    order = tf.argsort(ids, axis=1)
    ids = tf.gather(ids, order, axis=1, batch_dims=1)
    is_new = tf.pad(
        tf.cast(ids[:, 1:] != ids[:, :-1], tf.int32), [[0, 0], [1, 0]]
    )
    start = tf.range(n)[:, None] * positions
    flat_order = tf.reshape(order + start, [-1, 1])
    # Sorted, equal ids are neighbours: the rank grows where a new one begins.
    ranks = tf.reshape(tf.cumsum(is_new, 1) + start, [-1])
    return tf.scatter_nd(flat_order, ranks, [n * positions])


def squared_norm(gradient):
    """Return ‖gradient‖², a scalar; `tf.IndexedSlices` may repeat rows.

    With few slices, no array of the size of the table is made.

    Args:
        gradient: a tensor of any shape, or `tf.IndexedSlices`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> slices = tf.IndexedSlices(tf.ones((2, 1)), [0, 0], (5, 1))
    >>> float(factors.squared_norm(slices))  # the rows add up first
    4.0
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.reduce_sum(tf.square(wide(gradient)))
    ids, values = gradient.indices, wide(gradient.values)
    shape = gradient.dense_shape
    rows = None if shape is None else tf.get_static_value(shape[0])

    def by_table():
        table = tf.math.unsorted_segment_sum(values, ids, rows)
        return tf.reduce_sum(tf.square(table))

    def by_row():
        # All slices as positions of one sample.
        width = values.shape[1:].num_elements()
        dz = tf.reshape(values, [1, -1, width])
        return Rows(ids[None], dz, [tf.int32.max, width]).squared_norms()[0]

    if rows is None:
        return by_row()
    is_small = int(rows) <= ROWS_PER_SLICE * tf.size(ids, tf.int64)
    return tf.cond(is_small, by_table, by_row)
