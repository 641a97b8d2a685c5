"""Factors that change the sums and gradients of another one."""

import abc
import copy
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.written_out import wide


class Adapted(SampleGradients):
    """A factor whose sums and gradients are those of another, changed.

    Subclasses say what is changed, and give the norms.

    Args:
        factor: the other `SampleGradients`, which holds the tensors.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> class Doubled(factors.Adapted):
    ...     entrywise = True
    ...
    ...     def change(self, tensor):
    ...         return 2 * tensor
    ...
    ...     def squared_norms(self):
    ...         return 4 * self.factor.squared_norms()
    >>> Doubled(factors.Full(tf.ones((3, 2)))).squared_norms().numpy()
    array([8., 8., 8.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("factor",)
    #: Whether `change` treats each entry by itself: of the sum of a table it
    #: is given only the rows that were looked up then.
    entrywise = False

    def __init__(self, factor):
        self.factor = factor

    @abc.abstractmethod
    def change(self, tensor) -> Any:
        """Return a sum or gradients of the other factor, changed.

        Count axes from the last: gradients have the samples in front.
        """

    def of(self, factor):
        """Return another factor, changed in the same way."""
        changed = copy.copy(self)
        changed.factor = factor
        return changed

    def held(self, pairs=False):
        return self.of(self.factor.held(pairs))

    def weighted_sum(self, weights):
        return self._changed(self.factor.weighted_sum(weights))

    def _changed(self, total):
        if not self.entrywise:
            total = tf.convert_to_tensor(total)
        return of_values(self.change, total)

    def dot(self, direction):
        if not self.entrywise:
            return super().dot(direction)
        # `change` multiplies each entry by a number. In an inner product the
        # direction's entries may be multiplied instead.
        return self.factor.dot(self._changed(direction))

    def sum_of_squares(self):
        if not self.entrywise:
            return super().sum_of_squares()
        return self._changed(self._changed(self.factor.sum_of_squares()))

    def materialize(self):
        return self.change(self.factor.materialize())

    def chosen_method(self):
        return self.factor.chosen_method()

    def sum_method(self):
        return self.factor.sum_method()

    def norm_bytes(self, n):
        return self.factor.norm_bytes(n)


def of_values(change, total):
    """Return a tensor, or the values of slices, changed."""
    if not isinstance(total, tf.IndexedSlices):
        return change(tf.convert_to_tensor(total))
    values = change(total.values)
    return tf.IndexedSlices(values, total.indices, total.dense_shape)


class Widened(Adapted):
    """A factor in float32; gradients written out have the variable's type.

    What is squared, multiplied or added stays in float32: the square of a
    number above 256 overflows in float16, and below 2e-4 it is zero; bfloat16
    keeps three digits, too few for a sum.

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
