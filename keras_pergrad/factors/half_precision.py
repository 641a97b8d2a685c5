"""Factors of half-precision variables, with norms in single precision.

The square of a number above 256 overflows in float16, and below 2e-4 it is
zero; bfloat16 keeps three digits, too few for a sum.
"""

import tensorflow as tf

from keras_pergrad.factors.adapted import Adapted, of_values
from keras_pergrad.factors.written_out import HALF, wide


def widened(factor, dtype):
    """Return `factor` if `dtype` is wide enough for norms, else `Widened`.

    Args:
        factor: `SampleGradients`.
        dtype: the type of the variable.

    Returns:
        `factor`, or a `Widened`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> single = factors.Full(tf.ones((2, 1)))
    >>> factors.widened(single, tf.float32) is single
    True
    """
    return Widened(factor, dtype) if dtype in HALF else factor


class Widened(Adapted):
    """A factor in float32; gradients written out have the variable's type.

    What is squared, multiplied or added stays in float32.

    Args:
        factor: `SampleGradients` of half precision.
        dtype: the type of the variable.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> half = factors.Full(300 * tf.ones((2, 1), tf.float16))
    >>> wide = factors.Widened(half, tf.float16)
    >>> wide.squared_norms().numpy(), wide.materialize().dtype.name
    (array([90000., 90000.], dtype=float32), 'float16')
    """

    entrywise = True

    def __init__(self, factor, dtype):
        super().__init__(factor.map(wide))
        self.dtype = dtype

    def squared_norms(self):
        return self.factor.squared_norms()

    def squared_norm_of_sum(self):
        return self.factor.squared_norm_of_sum()

    def weighted_sum(self, weights):
        return self.factor.weighted_sum(weights)

    def dot(self, direction):
        return self.factor.dot(of_values(wide, direction))

    def sum_of_squares(self):
        return self.factor.sum_of_squares()

    def gram(self, other=None):
        is_widened = isinstance(other, Widened)
        return self.factor.gram(other.factor if is_widened else other)

    def change(self, tensor):
        return tf.cast(tensor, self.dtype)
