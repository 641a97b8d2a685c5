"""Powers of a Gramian on the span of its rows."""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.xla import in_xla


def rounding(gramian):
    """Return the distance from 1 to the next number of a Gramian's type."""
    return float(np.finfo(gramian.dtype.as_numpy_dtype).eps)


def eigh(matrix):
    """Return eigenvalues, ascending, and eigenvectors, to rounding."""
    values, vectors = tf.linalg.eigh(matrix)
    if in_xla():  # It stops at about half of the digits.
        for _ in range(2):
            values, vectors = _refined(matrix, values, vectors)
        order = tf.argsort(values)
        values, vectors = (
            tf.gather(values, order),
            tf.gather(vectors, order, axis=1),
        )
    return values, vectors


def _refined(matrix, values, vectors):
    """Return eigenvalues and eigenvectors with twice as many digits."""
    # Ogita and Aishima, Japan J. Indust. Appl. Math. 35, 2018, algorithm 1.
    one = tf.eye(tf.shape(matrix)[0], dtype=matrix.dtype)
    turned = tf.transpose(vectors)
    lengths = one - tf.matmul(turned, vectors)
    products = tf.matmul(turned, tf.matmul(matrix, vectors))
    values = tf.linalg.diag_part(products) / (1 - tf.linalg.diag_part(lengths))
    off = products - tf.linalg.diag(values)
    near = 2 * (tf.norm(off) + tf.reduce_max(tf.abs(values)) * tf.norm(lengths))
    gaps = values[None, :] - values[:, None]
    apart = tf.abs(gaps) > near
    safe = tf.where(apart, gaps, tf.ones_like(gaps))
    turns = tf.where(apart, (products + values * lengths) / safe, lengths / 2)
    return values, vectors + tf.matmul(vectors, turns)


class Spectrum:
    """The eigenvalues of a Gramian, without those that are rounding alone.

    As in NumPy's and PyTorch's `pinv`, eigenvalues up to m · ε times the
    largest are taken as zero, ε that of the Gramian's type; they are computed
    in float64.

    Attributes:
        values: (m,), ascending, of float64.
        known: (m,) booleans: which are not zero.
    """

    def __init__(self, gramian):
        rows = tf.cast(tf.shape(gramian)[0], tf.float64)
        self.values, self._vectors = eigh(tf.cast(gramian, tf.float64))
        least = rounding(gramian) * rows
        self.known = self.values > least * tf.reduce_max(self.values)

    def times(self, vector, power):
        """Return the power of the matrix times a vector, (m,)."""
        one = tf.ones([], self.values.dtype)
        safe = tf.where(self.known, self.values, one)
        powers = tf.where(self.known, safe**power, 0 * one)
        turned = tf.linalg.matvec(self._vectors, vector, transpose_a=True)
        return tf.linalg.matvec(self._vectors, powers * turned)
