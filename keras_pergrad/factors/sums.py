"""Factors of biases and scales: small, so they are materialised."""

import tensorflow as tf

from keras_pergrad.factors.full import Full


class Sum(Full):
    """A bias: the sum of dz over all positions.

    Args:
        dz: (n, ..., *shape); the axes between are positions.
        shape: the variable's shape; default: the last axis of `dz`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.Sum(tf.ones((2, 5, 3))).materialize().numpy()[0]
    array([5., 5., 5.], dtype=float32)
    """

    def __init__(self, dz, shape=None):
        self.dz = dz
        self.shape = [dz.shape[-1]] if shape is None else list(shape)
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
        rank = len(self.shape)
        positions = list(range(1, self.dz.shape.rank - rank))
        return tf.reduce_sum(self.dz, positions) if positions else self.dz


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
