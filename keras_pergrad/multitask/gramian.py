"""Aggregations by the Gramian of all gradients, and parts that they share."""

import abc
import math
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Aggregation,
    DefinedMean,
    is_finite,
)
from keras_pergrad.common.arguments import is_number
from keras_pergrad.multitask.spectrum import (
    eigh,
    lengths_and_cosines,
    machine_epsilon,
)


class GramianAggregation(Aggregation):
    """An aggregation whose weights follow from all inner products.

    Let g_1 … g_m be gradients of samples or of tasks, the rows of a matrix J,
    scaled so that their *mean* is the ordinary gradient. Their Gramian is
    G = J Jᵀ, with entries ⟨g_i, g_j⟩. `gramian_weights(G)` gives w, and the
    aggregated gradient is Jᵀ w = Σ w_i g_i, as TorchJD's aggregator of the same
    name gives it for J. (`PCGrad` alone adds gradients up, so that the
    aggregated gradient is Jᵀ w / m: see `adds_up`.)

    A term c_i = g_i / m of the ordinary gradient, such as the contribution of
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
                type, float32 or float64, shows how exact they are; shipped
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
    shortest = tf.reduce_min(
        tf.where(is_nonzero, lengths, infinite_like(lengths))
    )
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


def infinite_like(tensor):
    """Return infinities of the shape and type of a tensor."""
    return tf.fill(tf.shape(tensor), tf.constant(math.inf, tensor.dtype))
