"""Factors of biases and scales: small, so they are materialised."""

import tensorflow as tf

from keras_pergrad.factors.full import Full
from keras_pergrad.factors.shared import integers


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

    def __init__(self, dz, shape=None, rank=None):
        self.dz = dz
        self.shape = [dz.shape[-1]] if shape is None else list(shape)
        self.rank = rank
        self._gradients = None

    @property
    def gradients(self):
        """(n, *shape), computed on first use."""
        if self._gradients is None:
            self._gradients = self._reduce()
        return self._gradients

    @gradients.setter
    def gradients(self, value):
        self._gradients = value

    def _reduce(self):
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

    def __init__(self, x, dz, shape=None):
        super().__init__(x * dz, shape)
