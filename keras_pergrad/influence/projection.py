"""Random projections of gradients: a matrix for each side."""

import copy
import hashlib
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.factors import wide
from keras_pergrad.factors.rows import ids_by_sample

# One side of a random projection: random signs, made at first use.


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
        bucket_ids = ids_by_sample(ids, n, self.size, tf.int32)
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


# Random projections of a variable's gradients, a matrix for each side.


#: A CPU's convolutions multiply by so many columns at once.
BLOCK = 16


class Projection:
    """A random linear map from gradients of a variable to a few numbers.

    A gradient is seen as a matrix G, of all axes but the last by the last one.
    Its projection is P_inᵀ G P_out, with random signs in both (LoGra, Choe et
    al., arXiv 2405.13954), so that sums of outer products need no gradient:
    Σ a ⊗ b becomes Σ (a P_in) ⊗ (b P_out). A side not longer than its share
    stays as it is, and so does a variable of at most `size` entries. Where it
    wastes nothing, the first side has a multiple of sixteen numbers. Inner
    products are kept in the mean: E⟨Pg, Ph⟩ = ⟨g, h⟩.

    It depends on its arguments alone, on whatever machine. Its matrices, in
    float32, are made at first use. That of a side of 2,048 numbers or more has
    one entry in each row: a table's rows are then added, not multiplied.

    Args:
        shape: the variable's shape.
        size: how many numbers a gradient may become, at least 1.
        seed: an integer, or a tuple of them, as (seed, index of the variable).

    Attributes:
        shape, seed: as given.
        size: k_in · k_out, at most what was given.

    Raises:
        ValueError: `size` is below 1, or `shape` is not all known.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad.influence.projection import Projection
    >>> projection = Projection((100, 50), 64, seed=0)
    >>> projection.of_gradients(tf.ones((2, 100, 50))).shape.as_list()
    [2, 64]
    """

    def __init__(self, shape, size, seed):
        self.shape = tuple(shape)
        if any(length is None for length in self.shape):
            raise ValueError(
                "`shape` expected the shape of a variable, all of it known. "
                f"Received: shape={self.shape}"
            )
        if size < 1:
            raise ValueError(f"`size` must be at least 1. Received: {size}")
        self.seed = tuple(seed) if isinstance(seed, (tuple, list)) else seed
        columns = self.shape[-1] if len(self.shape) > 1 else 1
        rows = math.prod(self.shape[:-1] if len(self.shape) > 1 else self.shape)
        sizes = _side_sizes(rows, columns, int(size))
        text = f"{self.seed}"
        self.inputs = Side(rows, sizes[0], f"{text}, inputs")
        self.outputs = Side(columns, sizes[1], f"{text}, outputs")

    def __repr__(self):
        return (
            f"Projection(shape={self.shape}, size={self.size}, "
            f"seed={self.seed})"
        )

    @property
    def size(self):
        """How many numbers a gradient becomes."""
        return self.inputs.size * self.outputs.size

    def of_gradients(self, gradients):
        """Return the projections of gradients that are written out, (n, size).

        Args:
            gradients: (n, *shape). Half precision is widened first.

        Example:

        >>> import numpy as np
        >>> from keras_pergrad.influence.projection import Projection
        >>> projection = Projection((3,), 8, seed=0)
        >>> projection.of_gradients(np.ones((2, 3))).numpy()  # few: all stay
        array([[1., 1., 1.],
               [1., 1., 1.]])
        """
        gradients = wide(tf.convert_to_tensor(gradients))
        sides = self.inputs.length, self.outputs.length
        partial = self.outputs.apply(tf.reshape(gradients, [-1, *sides]))
        if self.inputs.is_identity:
            return tf.reshape(partial, [-1, self.size])
        if self.inputs.is_matrix:
            matrix = self.inputs.matrix(partial.dtype)
            partial = tf.einsum("nac,ab->nbc", partial, matrix)
        else:
            partial = self.inputs.apply(tf.linalg.matrix_transpose(partial))
            partial = tf.linalg.matrix_transpose(partial)
        return tf.reshape(partial, [-1, self.size])

    def of_sides(self, rows, columns):
        """Return Σ_t rows ⊗ columns of sides that are projected, (n, size).

        Args:
            rows: (n, T, k_in).
            columns: (n, T, k_out).
        """
        products = tf.matmul(rows, columns, transpose_a=True)
        return tf.reshape(products, [-1, self.size])

    def in_shape(self, shape):
        """Return the same map for another shape with the same last axis."""
        projection = copy.copy(self)
        projection.shape = tuple(shape)
        return projection

    def of_last(self, start, length):
        """Return the same map for some entries of the variable's last axis."""
        projection = copy.copy(self)
        projection.shape = (*self.shape[:-1], length)
        if len(self.shape) > 1:
            projection.outputs = PartOfSide(self.outputs, start, length)
        else:
            projection.inputs = PartOfSide(self.inputs, start, length)
        return projection


def projections(shapes, size, seed):
    """Return a projection for each of several variables.

    Variables that are small stay as they are; the others share what is left
    evenly.

    Args:
        shapes: the shapes of the variables.
        size: how many numbers they may become in total, at least one each.
        seed: an integer.

    Returns:
        A list of `Projection`, with seeds (seed, index).

    Raises:
        ValueError: `size` is below the number of variables.

    Example:

    >>> from keras_pergrad.influence.projection import projections
    >>> found = projections([(100, 50), (50,), (2,)], 102, seed=0)
    >>> [projection.size for projection in found]
    [49, 50, 2]
    """
    shapes = [tuple(shape) for shape in shapes]
    if size < len(shapes):
        raise ValueError(
            f"`size` must be at least {len(shapes)}, a number for each "
            f"variable. Received: size={size}"
        )
    entry_counts = [math.prod(shape) for shape in shapes]
    # The smallest first: what they do not need is shared by the others.
    shares, remaining = {}, size
    for handled, k in enumerate(
        sorted(range(len(shapes)), key=entry_counts.__getitem__)
    ):
        shares[k] = max(
            min(entry_counts[k], remaining // (len(shapes) - handled)), 1
        )
        remaining -= shares[k]
    return [
        Projection(shape, shares[k], (seed, k))
        for k, shape in enumerate(shapes)
    ]


def _side_sizes(rows, columns, size):
    """Return the sizes of two sides, which multiply to at most `size`."""
    if rows * columns <= size:
        return rows, columns
    side = math.isqrt(size)
    if columns <= side:
        return min(rows, size // max(columns, 1)), columns
    if rows <= side:
        return rows, min(columns, size // max(rows, 1))
    if side > BLOCK:
        # Not where columns are so few that it would waste numbers.
        side = max(side // BLOCK * BLOCK, size // columns)
        return side, min(columns, size // side)
    # With the smaller remainder: 80 is 8 · 10, not 8 · 8.
    return min(rows, size // side), side
