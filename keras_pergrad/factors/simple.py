"""Factors of biases and scales: sums over all positions."""

from collections.abc import Sequence

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.full import Full
from keras_pergrad.factors.shared_tensors import integers


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
