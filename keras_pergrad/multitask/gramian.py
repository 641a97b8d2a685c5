"""Aggregations by the Gramian of all gradients, and parts that they share."""

import abc
import math
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import Aggregation, is_finite
from keras_pergrad.aggregations.epoch_means import DefinedMean
from keras_pergrad.common.numbers import is_number
from keras_pergrad.keras_internals.tensorflow.settings import in_xla


class GramianAggregation(Aggregation):
    """An aggregation whose weights follow from all inner products.

    Let g_1 … g_m be gradients of samples or of tasks, the rows of a matrix J,
    scaled so that their *mean* is the ordinary gradient. Their Gramian is
    G = J Jᵀ, with entries ⟨g_i, g_j⟩. `gramian_weights(G)` gives w, and the
    aggregated gradient is Jᵀ w = Σ w_i g_i, as TorchJD's aggregator of the same
    name gives it for J. (`PCGrad` alone adds gradients up, so that the
    aggregated gradient is Jᵀ w / m: see `adds_up`.)

    A part c_i = g_i / m of the ordinary gradient, such as the contribution of
    a sample to it or the gradient of a task's loss in a sum of losses, gets the
    factor m w_i, which `mean_weights` gives: 1 for each row, and the ordinary
    gradient, wherever an aggregation has nothing to change.

    A weight depends on the other rows. So such an aggregation is given to
    `Vectorized` alone, which has all samples of an update at once, on one
    device: privacy, microbatches, `Accumulated`, `PerSample` and several
    replicas are refused by name.

    Subclass it and define `gramian_weights`.

    Example, the mean of the gradients that agree with it:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> class Agreeing(kpg.aggregations.GramianAggregation):
    ...     def gramian_weights(self, gramian, present=None):
    ...         agrees = tf.reduce_sum(gramian, 1) >= 0
    ...         if present is not None:
    ...             agrees = agrees & present
    ...         agrees = tf.cast(agrees, gramian.dtype)
    ...         return tf.math.divide_no_nan(agrees, tf.reduce_sum(agrees))
    >>> gramian = tf.constant([[1.0, 0.0, -2.0], [0.0, 1.0, 0.0], [-2.0, 0, 9]])
    >>> Agreeing().gramian_weights(gramian).numpy()
    array([0. , 0.5, 0.5], dtype=float32)
    """

    needs: Literal["nothing", "norms", "gramian"] = "gramian"

    #: Whether rows that nothing changes get the weight 1 and not 1 / m.
    adds_up: bool = False

    @abc.abstractmethod
    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the weight of each row in the aggregated gradient, (m,).

        Args:
            gramian: (m, m), symmetric, with the inner products of all rows. Its
                type, float32 or float64, tells how exact they are; shipped
                aggregations compute in float64.
            present: (m,) booleans; where false, the row and column of the
                Gramian are zero and the weight must be 0, and the others must
                be as without that row. None: all are there.
        """

    def weights(self, norms: tf.Tensor) -> tf.Tensor:
        raise ValueError(
            f"{type(self).__name__} weighs gradients by the inner products of "
            "all of them, which norms do not tell. Use gramian_weights("
            "gramian); a gradient mode of your own looks at `needs` of its "
            "aggregation. Received: norms"
        )

    def mean_weights(self, gramian: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return each row's weight in the mean, and which rows are finite.

        Args:
            gramian: (m, m), of the rows g_i, of float32 or float64. NaN or
                infinity on its diagonal leaves a row out.

        Returns:
            (weights, finite), (m,) in float64 and (m,) booleans. The aggregated
            gradient is Σ weights_i g_i / m; weights of other rows are 0.
        """
        finite = is_finite(tf.linalg.diag_part(gramian))
        # Not a product with zero, which would leave NaN as it is.
        both_finite = finite[:, None] & finite[None, :]
        gramian = tf.where(both_finite, gramian, tf.zeros([], gramian.dtype))
        # Sums in another order may differ in the last digit.
        gramian = (gramian + tf.transpose(gramian)) / 2
        weights: Any = self.gramian_weights(gramian, finite)
        weights = tf.cast(weights, tf.float64)
        weights = tf.where(finite, weights, tf.zeros([], tf.float64))
        rows = tf.cast(tf.shape(finite)[0], tf.float64)
        if self.adds_up:
            # The sum is divided by m later; the mean is of the finite rows.
            finite_count = tf.reduce_sum(tf.cast(finite, tf.float64))
            return weights * tf.math.divide_no_nan(rows, finite_count), finite
        return weights * rows, finite

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        return {
            "conflict_share": DefinedMean,
            "nonfinite_samples": keras.metrics.Sum,
        }

    def gramian_statistics(self, gramian: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what is logged of a Gramian: scalars by name.

        `conflict_share` is the share of pairs of rows whose inner product is
        negative; NaN for a single row.
        """
        finite = is_finite(tf.linalg.diag_part(gramian))
        finite_count = tf.reduce_sum(tf.cast(finite, tf.float32))
        conflicts = tf.cast(gramian < 0, tf.float32)
        pairs = finite_count * (finite_count - 1)
        return {
            "conflict_share": tf.reduce_sum(conflicts) / pairs,
            "nonfinite_samples": tf.cast(tf.size(finite), tf.float32)
            - finite_count,
        }


# The weights of rows before an aggregation changes anything.


def checked_preference(value) -> list[float] | None:
    """Return the weights of rows as a list of floats, or None; else refuse."""
    if value is None:
        return None
    numbers = list(value) if hasattr(value, "__iter__") else []
    is_valid = all(is_number(n) and 0 <= n < math.inf for n in numbers)
    if not is_valid or not sum(numbers):
        raise ValueError(
            "`preference` must be None or a list of numbers of at least 0, one "
            f"for each row, not all 0. Received: preference={value!r}"
        )
    return [float(number) for number in numbers]


def row_weights(preference, gramian, present=None):
    """Return the weight of each row, (m,) of float64: as asked for, or 1/m."""
    rows = gramian.shape[0]
    if preference is not None:
        if rows is not None and rows != len(preference):
            raise ValueError(
                f"`preference` has {len(preference)} numbers, and there are "
                f"{rows} gradients. Give one for each, or leave it out."
            )
        weights = tf.constant(preference, tf.float64)
        if present is not None:
            weights = tf.where(present, weights, tf.zeros_like(weights))
        return weights
    if present is None:
        count = tf.shape(gramian)[0]
        return tf.fill([count], 1 / tf.cast(count, tf.float64))
    is_present = tf.cast(present, tf.float64)
    return tf.math.divide_no_nan(is_present, tf.reduce_sum(is_present))


# Powers of a Gramian on the span of its rows.


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

    Which they are is told by the cosines of the rows: a short gradient beside
    a long one is no rounding. As in NumPy's and PyTorch's `pinv`, eigenvalues
    of the cosines up to m · ε times the largest are taken as zero, ε that of
    the Gramian's type. All is computed in float64, the Gramian's eigenvalues
    as squares of the singular values of its root, which is more exact.

    Attributes:
        values: eigenvalues of the Gramian, (m,), ascending.
        nonzero: (m,) booleans: which are not zero.
        resolved: whether float64 tells those apart from zero.
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
        return _power_times(self._vectors, values, vector, power)

    def solve(self, vector):
        """Return the pseudoinverse times a vector, (m,); whether it is known.

        Of independent rows it is exact for lengths that differ by any factor.
        """
        vectors, values, is_independent = self._cosine_spectrum
        inverse = tf.math.divide_no_nan(
            tf.ones_like(self._lengths), self._lengths
        )
        exact = inverse * _power_times(vectors, values, inverse * vector, -1.0)
        solution = tf.where(is_independent, exact, self.times(vector, -1.0))
        return solution, is_independent | self.resolved


def _power_times(vectors, values, vector, power):
    """Return a power of a matrix times a vector; eigenvalues of 0 stay."""
    safe = tf.where(values > 0, values, tf.ones_like(values))
    powers = tf.where(values > 0, safe**power, tf.zeros_like(values))
    coordinates = tf.linalg.matvec(vectors, vector, transpose_a=True)
    return tf.linalg.matvec(vectors, powers * coordinates)


# Gramians in units of their trace.


#: The least eigenvalue of a matrix with the trace 1, to have an inverse.
MIN_EIGENVALUE = 1e-9


def normalized(gramian, min_trace):
    """Return a Gramian over its trace, or zero if that is below `min_trace`."""
    trace = tf.linalg.trace(gramian)
    is_small = trace < min_trace
    safe_trace = tf.where(is_small | (trace <= 0), tf.ones_like(trace), trace)
    return tf.where(is_small, tf.zeros_like(gramian), gramian / safe_trace)


def regularized(gramian):
    """Return a Gramian in float64 that has an inverse.

    The eigenvalues of the rows' cosines are raised to at least `MIN_EIGENVALUE`
    of their sum, so that a short gradient counts beside a long one. A row of
    zeros counts as one that is far shorter than all others.
    """
    # Rounding makes some negative, where gradients depend on each other.
    min_share = max(MIN_EIGENVALUE, machine_epsilon(gramian))
    lengths, cosines = lengths_and_cosines(gramian)
    is_nonzero = lengths > 0
    shortest = tf.reduce_min(tf.where(is_nonzero, lengths, _infinite(lengths)))
    shortest = tf.where(tf.math.is_finite(shortest), shortest, 1.0)
    lengths = tf.where(is_nonzero, lengths, MIN_EIGENVALUE * shortest)
    cosines = tf.linalg.set_diag(cosines, tf.ones_like(lengths))
    values, vectors = eigh(cosines)
    rows = tf.cast(tf.size(lengths), tf.float64)
    raised = tf.maximum(values, min_share * rows)
    correction = tf.matmul(
        vectors * (raised - values), vectors, transpose_b=True
    )
    cosines += (correction + tf.transpose(correction)) / 2
    return cosines * lengths * lengths[:, None]


def _infinite(tensor):
    return tf.fill(tf.shape(tensor), tf.constant(math.inf, tensor.dtype))
