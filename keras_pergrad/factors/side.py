"""One side of a random projection: random signs, made at first use."""

import hashlib
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.factors.rows_added import own_ids

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
        self._made = {}

    @property
    def is_whole(self):
        """Whether all numbers stay as they are."""
        return self.size == self.length

    @property
    def is_matrix(self):
        """Whether it has a matrix."""
        return not self._is_long or self.length * self.size <= _LARGE

    def matrix(self, dtype):
        """Return it as (length, size)."""
        if self.is_whole:
            return tf.eye(self.length, dtype=dtype)
        make = self._sparse_matrix if self._is_long else self._signs
        return tf.cast(self._once("matrix", make), dtype)

    def apply(self, tensor):
        """Return the map of the last axis, (..., size)."""
        if self.is_whole:
            return tensor
        if self.is_matrix:
            return _product(tensor, self.matrix(tensor.dtype))
        flat = tf.transpose(tf.reshape(tensor, [-1, self.length]))
        places, signs = self._places(), self._place_signs(tensor.dtype)
        added = tf.math.unsorted_segment_sum(
            flat * signs[:, None], places, self.size
        )
        shape = tf.concat([tf.shape(tensor)[:-1], [self.size]], 0)
        mapped = tf.reshape(tf.transpose(added), shape)
        mapped.set_shape([*tensor.shape[:-1], self.size])
        return mapped

    def summed(self, ids, values):
        """Return Σ_t row ids[t] ⊗ values[t], (n, size, d).

        Args:
            ids: (n, T) numbers of entries.
            values: (n, T, d).
        """
        if not self.is_whole and not self._is_long:
            self.matrix(values.dtype)
            rows = tf.gather(self._made["matrix"], ids)
            rows = tf.cast(rows, values.dtype)
            return tf.matmul(rows, values, transpose_a=True)
        n, columns = tf.shape(values)[0], values.shape[-1]
        if not self.is_whole:
            signs = tf.gather(self._place_signs(values.dtype), ids)
            values *= signs[..., None]
            ids = tf.gather(self._places(), ids)
        places = own_ids(ids, n, self.size, tf.int32)
        added = tf.math.unsorted_segment_sum(
            tf.reshape(values, [-1, columns]), places, n * self.size
        )
        return tf.reshape(added, [-1, self.size, columns])

    def _places(self):
        """Return which result each number is added to, (length,)."""
        make = self._random_places
        return self._once("places", lambda: make()[0])

    def _place_signs(self, dtype):
        make = self._random_places
        return tf.cast(self._once("signs", lambda: make()[1]), dtype)

    def _once(self, name, make):
        if name not in self._made:
            # A function captures a tensor that has a value.
            with tf.init_scope():
                self._made[name] = tf.constant(make())
        return self._made[name]

    def _signs(self):
        """Return ±1/√size, (length, size)."""
        count = self.length * self.size
        words = self._words(-(-count // 64))
        bits = np.unpackbits(words.view(np.uint8))[:count]
        scale = np.float32(1 / math.sqrt(self.size))
        signs = np.where(bits, scale, -scale)
        return signs.reshape(self.length, self.size)

    def _random_places(self):
        """Return a place below `size` and a sign for each number."""
        words = self._words(self.length)
        signs = np.where(words & np.uint64(1), 1, -1).astype("float32")
        # The upper half of a word is even over places but for 1 in 2^32.
        places = (words >> np.uint64(32)) % np.uint64(self.size)
        return places.astype("int32"), signs

    def _sparse_matrix(self):
        places, signs = self._random_places()
        matrix = np.zeros((self.length, self.size), "float32")
        matrix[np.arange(self.length), places] = signs
        return matrix

    def _words(self, count):
        """Return random 64-bit words of a generator that counts."""
        text = f"{self._seed}, {self.length}, {self.size}"
        digest = hashlib.sha256(text.encode()).digest()
        generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        return generator.random_raw(count).astype("<u8")


class PartOfSide:
    """A side for numbers `start` to `start + length` of another's."""

    is_whole = False

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
        after = self._side.length - self._start - self.length
        zeros = [[0, 0]] * (tensor.shape.rank - 1) + [[self._start, after]]
        return self._side.apply(tf.pad(tensor, zeros))

    def summed(self, ids, values):
        """Return Σ_t row ids[t] ⊗ values[t], (n, size, d)."""
        return self._side.summed(ids + self._start, values)


def _product(tensor, matrix):
    """Return tensor @ matrix as one product of many rows."""
    if tensor.shape.rank == 2:
        return tf.matmul(tensor, matrix)
    length, size = matrix.shape
    flat = tf.matmul(tf.reshape(tensor, [-1, length]), matrix)
    known = tensor.shape[1:-1].as_list()
    if None in known:
        shape = tf.concat([tf.shape(tensor)[:-1], [size]], 0)
    else:
        shape = [-1, *known, size]
    return tf.reshape(flat, shape)
