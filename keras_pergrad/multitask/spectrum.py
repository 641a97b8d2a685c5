"""Powers of a Gramian on the span of its rows."""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.settings import in_xla

#: What is left of numbers of about 1 that cancel, in float64.
CANCELLATION = 1e-12
#: A row that is shorter than this share of the longest one counts as zero.
MIN_LENGTH = 1e-14


def machine_epsilon(gramian):
    """Return the distance from 1 to the next number of a Gramian's type."""
    return float(np.finfo(gramian.dtype.as_numpy_dtype).eps)


def eigh(matrix):
    """Return eigenvalues, ascending, and eigenvectors, to rounding."""
    values, vectors = tf.linalg.eigh(matrix)
    if in_xla():  # It stops at about half of the digits.
        for _ in range(2):
            values, vectors = _refined(matrix, values, vectors)
        order = tf.argsort(values)
        values = tf.gather(values, order)
        vectors = tf.gather(vectors, order, axis=1)
    return values, vectors


def _refined(matrix, values, vectors):
    """Return eigenvalues and eigenvectors with twice as many digits."""
    # Ogita and Aishima, Japan J. Indust. Appl. Math. 35, 2018, algorithm 1.
    identity = tf.eye(tf.shape(matrix)[0], dtype=matrix.dtype)
    transposed = tf.transpose(vectors)
    deviation = identity - tf.matmul(transposed, vectors)
    products = tf.matmul(transposed, tf.matmul(matrix, vectors))
    values = tf.linalg.diag_part(products) / (
        1 - tf.linalg.diag_part(deviation)
    )
    off_diagonal = products - tf.linalg.diag(values)
    tolerance = 2 * (
        tf.norm(off_diagonal)
        + tf.reduce_max(tf.abs(values)) * tf.norm(deviation)
    )
    # Vectors of equal eigenvalues are only made orthogonal to each other.
    gaps = values[None, :] - values[:, None]
    is_separated = tf.abs(gaps) > tolerance
    safe_gaps = tf.where(is_separated, gaps, tf.ones_like(gaps))
    rotation = tf.where(
        is_separated, (products + values * deviation) / safe_gaps, deviation / 2
    )
    return values, vectors + tf.matmul(vectors, rotation)


def lengths_and_cosines(gramian):
    """Return the lengths of all rows, (m,), and their cosines, (m, m).

    In float64. An entry of a Gramian is exact to rounding of *its own* size,
    so cosines are exact to rounding whatever the lengths. Rows of zeros, and
    those too short for float64 beside the longest, have the length 0 and
    cosines of 0.
    """
    gramian = tf.cast(gramian, tf.float64)
    lengths = tf.sqrt(tf.maximum(tf.linalg.diag_part(gramian), 0))
    shortest = MIN_LENGTH * tf.reduce_max(lengths)
    lengths = tf.where(lengths < shortest, tf.zeros_like(lengths), lengths)
    inverse = tf.math.divide_no_nan(tf.ones_like(lengths), lengths)
    return lengths, gramian * inverse * inverse[:, None]


class Spectrum:
    """Powers of a Gramian, without the directions that are rounding alone.

    The cosines of the rows show which they are: a short gradient next to a
    long one is no rounding. As in NumPy's and PyTorch's `pinv`, eigenvalues
    of the cosines up to m · ε times the largest are taken as zero, ε that of
    the Gramian's type. All is computed in float64, the Gramian's eigenvalues
    as squares of the singular values of its root, which is more exact.

    Attributes:
        values: eigenvalues of the Gramian, (m,), ascending.
        nonzero: (m,) booleans: which are not zero.
        resolved: whether float64 distinguishes those from zero.
    """

    def __init__(self, gramian):
        self._lengths, cosines = lengths_and_cosines(gramian)
        rows = tf.cast(tf.shape(gramian)[0], tf.float64)
        values, vectors = eigh(cosines)
        threshold = rows * machine_epsilon(gramian) * tf.reduce_max(values)
        is_nonzero = values > threshold
        nonzero_values = tf.where(is_nonzero, values, tf.zeros_like(values))
        root = self._lengths[:, None] * vectors * tf.sqrt(nonzero_values)
        singular_values, self._vectors, _ = tf.linalg.svd(root)
        # From descending order to ascending.
        self._vectors = self._vectors[:, ::-1]
        singular_values = singular_values[::-1]
        self.values = tf.square(singular_values)
        rank = tf.math.count_nonzero(is_nonzero, dtype=tf.int32)
        # Ascending order: those that are not zero are the last `rank`.
        self.nonzero = tf.range(tf.size(values)) + rank >= tf.size(values)
        threshold = (
            rows * np.finfo("float64").eps * tf.reduce_max(singular_values)
        )
        self.resolved = tf.reduce_all(
            (singular_values > threshold) | ~self.nonzero
        )
        is_independent = rank == tf.math.count_nonzero(
            self._lengths > 0, dtype=tf.int32
        )
        self._cosine_spectrum = vectors, nonzero_values, is_independent

    def times(self, vector, power):
        """Return the power of the matrix times a vector, (m,)."""
        values = tf.where(self.nonzero, self.values, tf.zeros_like(self.values))
        return _power_times(self._vectors, values, vector, power=power)

    def solve(self, vector):
        """Return the pseudoinverse times a vector, (m,); whether it is known.

        Of independent rows it is exact for lengths that differ by any factor.
        """
        vectors, values, is_independent = self._cosine_spectrum
        inverse = tf.math.divide_no_nan(
            tf.ones_like(self._lengths), self._lengths
        )
        exact = inverse * _power_times(
            vectors, values, inverse * vector, power=-1.0
        )
        solution = tf.where(is_independent, exact, self.times(vector, -1.0))
        return solution, is_independent | self.resolved


def _power_times(vectors, values, vector, *, power):
    """Return a power of a matrix times a vector; eigenvalues of 0 stay."""
    safe = tf.where(values > 0, values, tf.ones_like(values))
    powers = tf.where(values > 0, safe**power, tf.zeros_like(values))
    coordinates = tf.linalg.matvec(vectors, vector, transpose_a=True)
    return tf.linalg.matvec(vectors, powers * coordinates)
