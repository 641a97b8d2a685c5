"""One side of a random projection: random signs, made at first use."""

import functools
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
    """

    def __init__(self, length, size, seed):
        self.length, self.size, self._seed = length, size, seed
        self._is_long = size < length and length >= _LONG

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
        return tf.cast(self._matrix, dtype)

    def apply(self, tensor):
        """Return the map of the last axis, (..., size)."""
        if self.is_identity:
            return tensor
        if self.is_matrix:
            return _product(tensor, self.matrix(tensor.dtype))
        flat = tf.transpose(tf.reshape(tensor, [-1, self.length]))
        buckets, signs = self._buckets
        signs = tf.cast(signs, tensor.dtype)
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
            rows = tf.cast(tf.gather(self._matrix, ids), values.dtype)
            return tf.matmul(rows, values, transpose_a=True)
        n, columns = tf.shape(values)[0], values.shape[-1]
        if not self.is_identity:
            buckets, signs = self._buckets
            signs = tf.gather(tf.cast(signs, values.dtype), ids)
            values *= signs[..., None]
            ids = tf.gather(buckets, ids)
        bucket_ids = ids_by_sample(ids, self.size, tf.int32)
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, columns]), bucket_ids, n * self.size
        )
        return tf.reshape(sums, [-1, self.size, columns])

    @functools.cached_property
    def _matrix(self):
        """A tensor with a value, which a function captures."""
        make = self._sparse_matrix if self._is_long else self._signs
        with tf.init_scope():
            return tf.constant(make())

    @functools.cached_property
    def _buckets(self):
        """The result that each number is added to, and its sign."""
        with tf.init_scope():
            return [tf.constant(part) for part in self._random_buckets()]

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
