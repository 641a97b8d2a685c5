"""Powers of a Gramian on the span of its rows."""

import numpy as np
import tensorflow as tf


class Spectrum:
    """The eigenvalues of a Gramian, without those that are rounding alone.

    As in NumPy's and PyTorch's `pinv`, eigenvalues up to m · ε times the
    largest are taken as zero, ε that of the type.

    Attributes:
        values: (m,), ascending.
        known: (m,) booleans: which are not zero.
    """

    def __init__(self, gramian):
        self.values, self._vectors = tf.linalg.eigh(gramian)
        rows = tf.cast(tf.shape(gramian)[0], gramian.dtype)
        least = np.finfo(gramian.dtype.as_numpy_dtype).eps * rows
        self.known = self.values > least * tf.reduce_max(self.values)

    def times(self, vector, power):
        """Return the power of the matrix times a vector, (m,)."""
        one = tf.ones([], self.values.dtype)
        safe = tf.where(self.known, self.values, one)
        powers = tf.where(self.known, safe**power, 0 * one)
        turned = tf.linalg.matvec(self._vectors, vector, transpose_a=True)
        return tf.linalg.matvec(self._vectors, powers * turned)
