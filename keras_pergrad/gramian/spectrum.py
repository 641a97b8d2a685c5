"""Powers of a Gramian on the span of its rows."""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.xla import in_xla

#: What is left of numbers of about 1 that cancel, in float64.
CANCELS = 1e-12


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


def units_of(gramian):
    """Return the lengths of all rows, (m,), and their cosines, (m, m).

    In float64. An entry of a Gramian is exact to rounding of *its own* size,
    so cosines are exact to rounding whatever the lengths. Rows of zeros have
    the length 0 and cosines of 0.
    """
    gramian = tf.cast(gramian, tf.float64)
    lengths = tf.sqrt(tf.maximum(tf.linalg.diag_part(gramian), 0))
    inverse = tf.math.divide_no_nan(tf.ones_like(lengths), lengths)
    return lengths, gramian * inverse * inverse[:, None]


class Spectrum:
    """Powers of a Gramian, without the directions that are rounding alone.

    Which they are is told by the cosines of the rows: a short gradient beside
    a long one is no rounding. As in NumPy's and PyTorch's `pinv`, eigenvalues
    of the cosines up to m · ε times the largest are taken as zero, ε that of
    the Gramian's type. All is computed in float64, the Gramian's eigenvalues
    as squares of the singular values of its root, which is more exact.

    Attributes:
        values: eigenvalues of the Gramian, (m,), ascending.
        known: (m,) booleans: which are not zero.
        resolved: whether float64 tells those apart from zero.
    """

    def __init__(self, gramian):
        self._lengths, cosines = units_of(gramian)
        rows = tf.cast(tf.shape(gramian)[0], tf.float64)
        values, vectors = eigh(cosines)
        least = rows * rounding(gramian) * tf.reduce_max(values)
        there = values > least
        kept = tf.where(there, values, tf.zeros_like(values))
        root = self._lengths[:, None] * vectors * tf.sqrt(kept)
        singular, self._vectors, _ = tf.linalg.svd(root)
        self._vectors = self._vectors[:, ::-1]
        singular = singular[::-1]
        self.values = tf.square(singular)
        rank = tf.math.count_nonzero(there, dtype=tf.int32)
        self.known = tf.range(tf.size(values)) + rank >= tf.size(values)
        least = rows * np.finfo("float64").eps * tf.reduce_max(singular)
        self.resolved = tf.reduce_all((singular > least) | ~self.known)
        independent = rank == tf.math.count_nonzero(
            self._lengths > 0, dtype=tf.int32
        )
        self._of_cosines = vectors, kept, independent

    def times(self, vector, power):
        """Return the power of the matrix times a vector, (m,)."""
        values = tf.where(self.known, self.values, tf.zeros_like(self.values))
        return _times(self._vectors, values, vector, power)

    def solve(self, vector):
        """Return the pseudoinverse times a vector, (m,); whether it is known.

        Of independent rows it is exact for lengths that differ by any factor.
        """
        vectors, values, independent = self._of_cosines
        inverse = tf.math.divide_no_nan(
            tf.ones_like(self._lengths), self._lengths
        )
        exact = inverse * _times(vectors, values, inverse * vector, -1.0)
        found = tf.where(independent, exact, self.times(vector, -1.0))
        return found, independent | self.resolved


def _times(vectors, values, vector, power):
    """Return a power of a matrix times a vector; eigenvalues of 0 stay."""
    safe = tf.where(values > 0, values, tf.ones_like(values))
    powers = tf.where(values > 0, safe**power, tf.zeros_like(values))
    turned = tf.linalg.matvec(vectors, vector, transpose_a=True)
    return tf.linalg.matvec(vectors, powers * turned)
