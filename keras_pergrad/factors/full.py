"""Gradients of samples that are materialised, not factored."""

from typing import Any

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.written_out import (
    held_bytes,
    in_shape,
    inner_products,
    squares,
    squares_by_sample,
    weighted_total,
)


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
