"""One side of a random projection: a matrix of signs, made at first use."""

import hashlib
import math

import numpy as np
import tensorflow as tf

#: A side whose matrix would have more entries is the product of two.
_LARGE = 2**22


class Side:
    """A linear map from `length` numbers to `size`, the same everywhere.

    Its entries are ±1/√size. A side of `size` = `length` maps nothing. A long
    one sees its numbers as a matrix, with a map for each axis.

    Args:
        length, size: integers; `size` is at most `length`, and may become a
            little less, the product of two.
        seed: a text.
        may_part: whether it may have two matrices.
    """

    def __init__(self, length, size, seed, may_part=True):
        self.length, self.size, self._seed = length, size, seed
        self._matrix = None
        self._parts = None
        if may_part and size < length and length * size > _LARGE:
            self._parts = _two(length, size, seed)
            self.size = math.prod(part.size for part in self._parts)

    @property
    def is_whole(self):
        """Whether all numbers stay as they are."""
        return self.size == self.length

    @property
    def is_matrix(self):
        """Whether it has one matrix, not two."""
        return self._parts is None

    def matrix(self, dtype):
        """Return it as (length, size); not for one of two matrices."""
        if self.is_whole:
            return tf.eye(self.length, dtype=dtype)
        if self._matrix is None:
            # A function captures a tensor that has a value.
            with tf.init_scope():
                signs = _signs(self.length, self.size, self._seed)
                self._matrix = tf.constant(signs)
        return tf.cast(self._matrix, dtype)

    def apply(self, tensor):
        """Return the map of the last axis, (..., size)."""
        if self.is_whole:
            return tensor
        if self._parts is None:
            return _product(tensor, self.matrix(tensor.dtype))
        first, last = self._parts
        before = tf.shape(tensor)[:-1]
        flat = tf.reshape(tensor, [-1, self.length])
        missing = first.length * last.length - self.length
        flat = tf.pad(flat, [[0, 0], [0, missing]])
        parts = last.apply(tf.reshape(flat, [-1, first.length, last.length]))
        parts = first.apply(tf.linalg.matrix_transpose(parts))
        mapped = tf.reshape(parts, tf.concat([before, [self.size]], 0))
        mapped.set_shape([*tensor.shape[:-1], self.size])
        return mapped

    def rows(self, ids, dtype):
        """Return what each number by itself becomes, (*ids, size)."""
        if self.is_whole:
            return tf.one_hot(ids, self.length, dtype=dtype)
        if self._parts is None:
            self.matrix(dtype)
            return tf.cast(tf.gather(self._matrix, ids), dtype)
        first, last = self._parts
        firsts = first.rows(ids // last.length, dtype)
        lasts = last.rows(ids % last.length, dtype)
        products = lasts[..., :, None] * firsts[..., None, :]
        shape = tf.concat([tf.shape(ids), [self.size]], 0)
        return tf.reshape(products, shape)


class PartOfSide:
    """A side for numbers `start` to `start + length` of another's."""

    is_whole = False

    def __init__(self, side, start, length):
        self._side, self._start = side, start
        self.length, self.size = length, side.size

    @property
    def is_matrix(self):
        return self._side.is_matrix

    def matrix(self, dtype):
        end = self._start + self.length
        return self._side.matrix(dtype)[self._start : end]

    def apply(self, tensor):
        if self.is_matrix:
            return _product(tensor, self.matrix(tensor.dtype))
        after = self._side.length - self._start - self.length
        zeros = [[0, 0]] * (tensor.shape.rank - 1) + [[self._start, after]]
        return self._side.apply(tf.pad(tensor, zeros))

    def rows(self, ids, dtype):
        return self._side.rows(ids + self._start, dtype)


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


def _two(length, size, seed):
    """Return the sides of the axes of a matrix that has `length` numbers."""
    last = math.isqrt(length - 1) + 1
    first = -(-length // last)
    few = math.isqrt(size)
    return (
        Side(first, min(few, first), f"{seed}, first", False),
        Side(last, min(size // few, last), f"{seed}, last", False),
    )


def _signs(length, size, seed):
    """Return ±1/√size, (length, size), from a generator of counters."""
    digest = hashlib.sha256(f"{seed}, {length}, {size}".encode()).digest()
    generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
    words = -(-length * size // 64)
    raw = generator.random_raw(words).astype("<u8").view(np.uint8)
    bits = np.unpackbits(raw)[: length * size].reshape(length, size)
    scale = np.float32(1 / math.sqrt(size))
    return np.where(bits, scale, -scale)
