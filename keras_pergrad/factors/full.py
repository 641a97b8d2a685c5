"""Per-sample gradients that are materialised, not factored."""

import tensorflow as tf

from keras_pergrad.factors.sample_gradients import (
    SampleGradients,
    squares_by_sample,
    weighted,
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

    rows = ("gradients",)

    def __init__(self, gradients):
        self.gradients = gradients

    def squared_norms(self):
        return squares_by_sample(self.gradients)

    def weighted_sum(self, weights):
        if weights is None:
            return tf.reduce_sum(self.gradients, 0)
        return weighted(self.gradients, weights)

    def materialize(self):
        return self.gradients

    def norm_bytes(self, n):
        return held_bytes(self.gradients, n)


def held_bytes(tensor, n):
    """Return the bytes of `tensor` for n samples; None for unknown shapes."""
    size = tensor.shape[1:].num_elements()
    return None if size is None else n * size * tensor.dtype.size
