"""Gradients of samples that are materialised, not factored.

Of biases and scales they are sums over positions; small ones of many variables
lie side by side.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.written_out import (
    held_bytes,
    in_shape,
    inner_products,
    integers,
    squares,
    squares_by_sample,
    weighted_total,
)

#: A sample's gradient with more entries is not copied to save ops.
_SMALL_SIZE = 2**12


class Full(SampleGradients):
    """Materialised contributions.

    Args:
        gradients: (n, *shape of the variable).

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.Full(tf.ones((2, 3, 3))).squared_norms().numpy()
    array([9., 9.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("gradients",)
    gradients: Any

    def __init__(self, gradients: tf.Tensor):
        self.gradients = gradients

    def squared_norms(self) -> tf.Tensor:
        return squares_by_sample(self.gradients)

    def weighted_sum(self, weights: tf.Tensor | None) -> tf.Tensor:
        if weights is None:
            return tf.reduce_sum(self.gradients, 0)
        return weighted_total(self.gradients, weights)

    def materialize(self) -> tf.Tensor:
        return self.gradients

    def norm_bytes(self, n: int) -> int | None:
        return held_bytes(self.gradients, n)


class Sum(Full):
    """A bias: the sum of dz over all positions.

    Args:
        dz: (n, ..., *shape); the axes between are positions.
        shape: the variable's shape; default: the last axis of `dz`.
        rank: how many of the last axes of `dz` are no positions, where these
            are not the axes of `shape`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.Sum(tf.ones((2, 5, 3))).materialize().numpy()[0]
    array([5., 5., 5.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("dz",)

    def __init__(
        self,
        dz: tf.Tensor,
        shape: Sequence[int] | None = None,
        rank: int | None = None,
    ):
        self.dz: tf.Tensor = dz
        self.shape: list[int] = [dz.shape[-1]] if shape is None else list(shape)
        self.rank: int | None = rank

    def held(self, pairs: bool = False) -> SampleGradients:
        """Return the sums, written out."""
        return Full(self.gradients)

    @property
    def gradients(self) -> tf.Tensor:
        """(n, *shape)."""
        rank = len(self.shape) if self.rank is None else self.rank
        total, positions = self.dz, range(1, self.dz.shape.rank - rank)
        if positions:
            total = tf.reduce_sum(total, integers(*positions))
        if self.rank is None or total.shape[1:].as_list() == self.shape:
            return total
        return tf.reshape(total, integers(-1, *self.shape))


class Product(Sum):
    """A scale: the sum of x·dz over all positions.

    Args:
        x: (n, ..., *shape).
        dz: the same shape.
        shape: the variable's shape; default: the last axis.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> scale = factors.Product(2 * tf.ones((2, 5, 3)), tf.ones((2, 5, 3)))
    >>> scale.weighted_sum(None).numpy()
    array([20., 20., 20.], dtype=float32)
    """

    def __init__(
        self, x: tf.Tensor, dz: tf.Tensor, shape: Sequence[int] | None = None
    ):
        super().__init__(x * dz, shape)


def together(factors):
    """Put small factors side by side; None stays None.

    A model has a bias or a scale for each kernel. One norm and one sum for all
    of them take a tenth of the ops.

    Args:
        factors: for each variable a `SampleGradients`, as `held` returns it
            (the small ones are `Full`), or None.

    Returns:
        (factors, split_sums): fewer of them, and a function that takes one
        tensor for each of these, and returns one for each variable.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> biases = [factors.Full(tf.ones((2, k))) for k in (3, 4)]
    >>> joined, split_sums = factors.together(biases)
    >>> len(joined), joined[0].squared_norms().numpy()
    (1, array([7., 7.], dtype=float32))
    >>> [t.shape[0] for t in split_sums([joined[0].weighted_sum(None)])]
    [3, 4]
    """
    groups = {}
    for k, factor in enumerate(factors):
        if _is_small(factor):
            groups.setdefault(factor.gradients.dtype, []).append(k)
    groups = [indices for indices in groups.values() if len(indices) > 1]
    if not groups:
        return factors, list
    joined = [
        Full(tf.concat([_flat(factors[k].gradients) for k in indices], 1))
        for indices in groups
    ]
    joined_indices = {k for indices in groups for k in indices}
    others = [k for k in range(len(factors)) if k not in joined_indices]

    def split_sums(tensors):
        by_variable = dict(zip(others, tensors[len(joined) :]))
        for indices, tensor in zip(groups, tensors):
            shapes = [factors[k].gradients.shape[1:] for k in indices]
            sizes = [shape.num_elements() for shape in shapes]
            for k, t, shape in zip(indices, tf.split(tensor, sizes), shapes):
                by_variable[k] = t if shape.rank == 1 else tf.reshape(t, shape)
        return [by_variable[k] for k in range(len(factors))]

    return [*joined, *(factors[k] for k in others)], split_sums


def _is_small(factor):
    if type(factor) is not Full:
        return False
    size = factor.gradients.shape[1:].num_elements()
    return size is not None and size <= _SMALL_SIZE


def _flat(tensor):
    if tensor.shape.rank == 2:
        return tensor
    return tf.reshape(tensor, integers(-1, tensor.shape[1:].num_elements()))


class Permuted(SampleGradients):
    """Contributions that are matrices whose axes are those of the variable.

    Attributes:
        shape: the variable's shape; None: that of the matrix.
        perm: how axes must be transposed to give `shape`, applied to a matrix
            reshaped to `unpermuted`; None: not.
        unpermuted: the shape before `perm`.
    """

    shape: Any
    perm: Any
    unpermuted: Any

    def _restore_shape(self, matrix, batch=()):
        """Return a matrix (*batch, ...) in the shape of the variable."""
        if self.perm is not None:
            matrix = in_shape(matrix, [*batch, *self.unpermuted])
            rank = len(batch)
            perm = [*range(rank), *(p + rank for p in self.perm)]
            matrix = tf.transpose(matrix, perm)
        shape = self.shape
        return matrix if shape is None else in_shape(matrix, [*batch, *shape])

    def _as_matrix(self, direction, shape):
        """Return a gradient of the variable as a matrix of this shape."""
        if self.perm is not None:
            sizes = [self.unpermuted[p] for p in self.perm]
            inverse = [list(self.perm).index(k) for k in range(len(self.perm))]
            direction = tf.transpose(tf.reshape(direction, sizes), inverse)
        return in_shape(direction, shape)


class Held(Permuted):
    """Gradients written out for several answers, in the layout of a factor.

    Args:
        gradients: (n, ...), with as many entries as the variable.
        shape, perm, unpermuted: as of `Outer`; default: a sample's gradient
            has the variable's shape.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> gradients = tf.ones((2, 3, 4))
    >>> kernel = factors.Held(gradients, [4, 3], perm=[1, 0], unpermuted=[3, 4])
    >>> kernel.weighted_sum(None).shape.as_list()
    [4, 3]
    """

    sampled = ("gradients",)

    def __init__(self, gradients, shape=None, perm=None, *, unpermuted=None):
        self.gradients = gradients
        self.shape = shape
        self.perm, self.unpermuted = perm, unpermuted

    def squared_norms(self):
        return squares_by_sample(self.gradients)

    def weighted_sum(self, weights):
        shape = self.shape if self.perm is None else self.unpermuted
        return self._restore_shape(
            weighted_total(self.gradients, weights, shape)
        )

    def materialize(self):
        return self._restore_shape(self.gradients, [-1])

    def dot(self, direction):
        matrix = self._as_matrix(tf.convert_to_tensor(direction), [-1])
        return inner_products(self.gradients, matrix)

    def sum_of_squares(self):
        return self._restore_shape(squares(self.gradients))

    def squared_norm_of_sum(self):
        return tf.reduce_sum(tf.square(tf.reduce_sum(self.gradients, 0)))

    def norm_bytes(self, n):
        return held_bytes(self.gradients, n)
