"""One side of a random projection: random signs, made at first use."""

import hashlib
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.factors.hashed_ids import ids_by_sample

#: A side of so many numbers adds each to one of the results, not to all.
_LONG = 2**11
#: A matrix with more entries is not made.
_LARGE = 2**24


class Side:
    """A linear map from `length` numbers to `size`, the same everywhere.

    Its matrix has entries ±1/√size. A long side has one ±1 in each row
    (Weinberger et al., arXiv 0902.2206): inner products vary by as much, and a
    row of a table is one sum. A side of `size` = `length` maps nothing.

    Args:
        length, size: integers; `size` is at most `length`.
        seed: a text.
    """

    def __init__(self, length, size, seed):
        self.length, self.size, self._seed = length, size, seed
        self._is_long = size < length and length >= _LONG
        self._cache = {}

    @property
    def is_identity(self):
        """Whether all numbers stay as they are."""
        return self.size == self.length

    @property
    def is_matrix(self):
        """Whether it has a matrix."""
        return not self._is_long or self.length * self.size <= _LARGE

    def matrix(self, dtype):
        """Return it as (length, size)."""
        if self.is_identity:
            return tf.eye(self.length, dtype=dtype)
        make = self._sparse_matrix if self._is_long else self._signs
        return tf.cast(self._cached("matrix", make), dtype)

    def apply(self, tensor):
        """Return the map of the last axis, (..., size)."""
        if self.is_identity:
            return tensor
        if self.is_matrix:
            return _product(tensor, self.matrix(tensor.dtype))
        flat = tf.transpose(tf.reshape(tensor, [-1, self.length]))
        buckets, signs = self._buckets(), self._bucket_signs(tensor.dtype)
        sums = tf.math.unsorted_segment_sum(
            flat * signs[:, None], buckets, self.size
        )
        shape = tf.concat([tf.shape(tensor)[:-1], [self.size]], 0)
        result = tf.reshape(tf.transpose(sums), shape)
        result.set_shape([*tensor.shape[:-1], self.size])
        return result

    def sum_rows(self, ids, values):
        """Return Σ_t row ids[t] ⊗ values[t], (n, size, d).

        Args:
            ids: (n, T) numbers of entries.
            values: (n, T, d).
        """
        if not self.is_identity and not self._is_long:
            # This fills the cache; only the rows that are looked up are cast.
            self.matrix(values.dtype)
            rows = tf.gather(self._cache["matrix"], ids)
            rows = tf.cast(rows, values.dtype)
            return tf.matmul(rows, values, transpose_a=True)
        n, columns = tf.shape(values)[0], values.shape[-1]
        if not self.is_identity:
            signs = tf.gather(self._bucket_signs(values.dtype), ids)
            values *= signs[..., None]
            ids = tf.gather(self._buckets(), ids)
        bucket_ids = ids_by_sample(ids, n, self.size, dtype=tf.int32)
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, columns]), bucket_ids, n * self.size
        )
        return tf.reshape(sums, [-1, self.size, columns])

    def _buckets(self):
        """Return which result each number is added to, (length,)."""
        make = self._random_buckets
        return self._cached("places", lambda: make()[0])

    def _bucket_signs(self, dtype):
        make = self._random_buckets
        return tf.cast(self._cached("signs", lambda: make()[1]), dtype)

    def _cached(self, name, make):
        if name not in self._cache:
            # A function captures a tensor that has a value.
            with tf.init_scope():
                self._cache[name] = tf.constant(make())
        return self._cache[name]

    def _signs(self):
        """Return ±1/√size, (length, size)."""
        count = self.length * self.size
        words = self._words(-(-count // 64))
        bits = np.unpackbits(words.view(np.uint8))[:count]
        scale = np.float32(1 / math.sqrt(self.size))
        signs = np.where(bits, scale, -scale)
        return signs.reshape(self.length, self.size)

    def _random_buckets(self):
        """Return a bucket below `size` and a sign for each number."""
        words = self._words(self.length)
        signs = np.where(words & np.uint64(1), 1, -1).astype("float32")
        # The upper half of a word is uniform over buckets up to 1 in 2^32.
        buckets = (words >> np.uint64(32)) % np.uint64(self.size)
        return buckets.astype("int32"), signs

    def _sparse_matrix(self):
        buckets, signs = self._random_buckets()
        matrix = np.zeros((self.length, self.size), "float32")
        matrix[np.arange(self.length), buckets] = signs
        return matrix

    def _words(self, count):
        """Return random 64-bit words of a counter-based generator."""
        text = f"{self._seed}, {self.length}, {self.size}"
        digest = hashlib.sha256(text.encode()).digest()
        generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        return generator.random_raw(count).astype("<u8")


class PartOfSide:
    """A side for numbers `start` to `start + length` of another's."""

    is_identity = False

    def __init__(self, side, start, length):
        self._side, self._start = side, start
        self.length, self.size = length, side.size

    @property
    def is_matrix(self):
        """Whether it has a matrix."""
        return self._side.is_matrix

    def matrix(self, dtype):
        """Return it as (length, size)."""
        end = self._start + self.length
        return self._side.matrix(dtype)[self._start : end]

    def apply(self, tensor):
        """Return the map of the last axis, (..., size)."""
        if self.is_matrix:
            return _product(tensor, self.matrix(tensor.dtype))
        trailing_zeros = self._side.length - self._start - self.length
        zeros = [[0, 0]] * (tensor.shape.rank - 1) + [
            [self._start, trailing_zeros]
        ]
        return self._side.apply(tf.pad(tensor, zeros))

    def sum_rows(self, ids, values):
        """Return Σ_t row ids[t] ⊗ values[t], (n, size, d)."""
        return self._side.sum_rows(ids + self._start, values)


def _product(tensor, matrix):
    """Return tensor @ matrix as one product of many rows."""
    if tensor.shape.rank == 2:
        return tf.matmul(tensor, matrix)
    length, size = matrix.shape
    flat = tf.matmul(tf.reshape(tensor, [-1, length]), matrix)
    static_sizes = tensor.shape[1:-1].as_list()
    if None in static_sizes:
        shape = tf.concat([tf.shape(tensor)[:-1], [size]], 0)
    else:
        shape = [-1, *static_sizes, size]
    return tf.reshape(flat, shape)
