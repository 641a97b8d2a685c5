"""Aggregations that outliers do not move: Krum, the geometric median."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.numbers import positive_integer, positive_number
from keras_pergrad.multitask.gramian import GramianAggregation, row_weights

# Distances between gradients, from their inner products.


def squared_distances(gramian):
    """Return ‖g_i - g_j‖² of all pairs, (m, m); never negative."""
    squares = tf.linalg.diag_part(gramian)
    distances = squares[:, None] + squares[None, :] - 2 * gramian
    return tf.maximum(distances, tf.zeros([], gramian.dtype))


# The gradients that lie nearest to most others: Krum.


class Krum(GramianAggregation):
    """The mean of those gradients whose nearest neighbours are nearest.

    ```
    s_i = Σ of ‖g_i - g_j‖ over the m - n_byzantine - 2 nearest j ≠ i
    w   = 1 / n_selected for the n_selected gradients of the least s_i, else 0
    ```

    Up to `n_byzantine` gradients may be anything. Blanchard et al., "Machine
    learning with adversaries", arXiv 1703.02757 (Multi-Krum for n_selected >
    1), with distances, not their squares, as TorchJD.

    By name `"krum"`, with one gradient that may be anything.

    Args:
        n_byzantine: how many gradients may be anything.
        n_selected: of how many gradients the mean is taken.

    Raises:
        ValueError: an argument is out of range.
        InvalidArgumentError: a batch has fewer than n_byzantine + 3 samples,
            or fewer than n_selected, with finite gradients, before any weight
            changes; under XLA, which cannot say it, the gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> rows = tf.constant([[1.0], [1.1], [0.9], [9.0]], tf.float64)
    >>> gramian = tf.matmul(rows, rows, transpose_b=True)
    >>> krum = kpg.aggregations.Krum(n_byzantine=1, n_selected=3)
    >>> krum.gramian_weights(gramian).numpy()
    array([0.33333333, 0.33333333, 0.33333333, 0.        ])
    """

    def __init__(self, n_byzantine: int = 1, n_selected: int = 1):
        # No gradient that may be anything is sensible, too.
        is_zero = type(n_byzantine) is int and n_byzantine == 0
        if not is_zero:
            n_byzantine = positive_integer("n_byzantine", n_byzantine)
        self.n_byzantine: int = n_byzantine
        self.n_selected: int = positive_integer("n_selected", n_selected)

    @property
    def fewest(self) -> int:
        """How many gradients there must be."""
        return max(self.n_byzantine + 3, self.n_selected)

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        gramian = tf.cast(gramian, tf.float64)
        m = tf.shape(gramian)[0]
        present_count = m
        distances = tf.sqrt(squared_distances(gramian))
        infinite = tf.constant(math.inf, gramian.dtype)
        if present is not None:
            present_count = tf.math.count_nonzero(present, dtype=tf.int32)
            both_present = present[:, None] & present[None, :]
            distances = tf.where(both_present, distances, infinite)
        enough = present_count >= self.fewest
        text = _TOO_FEW.format(self, self.fewest)
        check = tf.debugging.Assert(enough, [text, present_count])
        with tf.control_dependencies([check] if check is not None else []):
            # The first is that of the row to itself.
            nearest = tf.sort(distances, axis=1)
        neighbour_count = present_count - self.n_byzantine - 2
        is_neighbour = (tf.range(m) >= 1) & (tf.range(m) <= neighbour_count)
        scores = tf.where(is_neighbour, nearest, tf.zeros_like(nearest))
        scores = tf.reduce_sum(scores, 1)
        if present is not None:
            scores = tf.where(present, scores, infinite)
        # Twice sorted gives ranks; of equal scores the first row wins.
        ranks = tf.argsort(tf.argsort(scores, stable=True), stable=True)
        chosen = enough & (ranks < self.n_selected)
        return tf.cast(chosen, gramian.dtype) / self.n_selected

    def get_config(self) -> dict[str, Any]:
        return {
            "n_byzantine": self.n_byzantine,
            "n_selected": self.n_selected,
        }


aggregations.register("krum", Krum)

_TOO_FEW = (
    "{!r} needs at least {} gradients. No weight has changed. Use batches of "
    "no fewer samples (drop_remainder=True for the last), or smaller numbers. "
    "Gradients that are finite:"
)

# The point with the least sum of distances to all gradients.


#: The steps end where no weight changes by more.
MIN_CHANGE = 1e-10


class GeometricMedian(GramianAggregation):
    """The point with the least sum of distances to all gradients.

    ```
    g ← Σ w_i g_i,   w_i ∝ 1 / max(‖g - g_i‖, smoothing · median of ‖g_j‖)
    ```

    from the mean on, until it stands still (smoothed Weiszfeld steps). Less
    than half of the gradients, whatever they are, cannot move it far. Pillutla
    et al., "Robust aggregation for federated learning", arXiv 1912.13445.

    By name `"geometric_median"`.

    Args:
        smoothing: distances count as at least this share of the median of all
            norms, which a few long gradients do not move. A Gramian in float32
            tells no distance below about 3e-4 of the norms.
        max_iterations: how many steps are taken at most. They end where no
            weight changes by more than 1e-10.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> rows = tf.constant([[1.0], [2.0], [900.0]], tf.float64)
    >>> gramian = tf.matmul(rows, rows, transpose_b=True)
    >>> median = kpg.aggregations.GeometricMedian(1e-9)
    >>> weights = median.gramian_weights(gramian)
    >>> tf.linalg.matvec(rows, weights, transpose_a=True).numpy().round(3)
    array([2.])
    """

    def __init__(self, smoothing: float = 1e-3, *, max_iterations: int = 100):
        self.smoothing: float = positive_number("smoothing", smoothing)
        self.max_iterations: int = positive_integer(
            "max_iterations", max_iterations
        )

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        start = row_weights(None, gramian, present)
        gramian = tf.cast(gramian, tf.float64)
        squares = tf.linalg.diag_part(gramian)
        zero = tf.zeros([], gramian.dtype)
        # Where most are zero, what rounding leaves of the others.
        min_square = tf.reduce_max(squares) * np.finfo("float64").eps
        median_square = tf.maximum(_median(squares, present), min_square)
        min_distance = self.smoothing**2 * median_square
        min_distance = tf.where(
            min_distance > 0, min_distance, tf.ones_like(min_distance)
        )

        def should_continue(k, weights, change):
            return (k < self.max_iterations) & (change > MIN_CHANGE)

        def step(k, weights, _):
            products = tf.linalg.matvec(gramian, weights)
            squared_mean = tf.tensordot(weights, products, 1)
            distances = squares - 2 * products + squared_mean
            new_weights = tf.math.rsqrt(tf.maximum(distances, min_distance))
            if present is not None:
                new_weights = tf.where(present, new_weights, zero)
            new_weights = tf.math.divide_no_nan(
                new_weights, tf.reduce_sum(new_weights)
            )
            return (
                k + 1,
                new_weights,
                tf.reduce_max(tf.abs(new_weights - weights)),
            )

        state = 0, start, tf.constant(math.inf, gramian.dtype)
        return tf.while_loop(
            should_continue, step, state, parallel_iterations=1
        )[1]

    def get_config(self) -> dict[str, Any]:
        return {
            "smoothing": self.smoothing,
            "max_iterations": self.max_iterations,
        }


def _median(values, present):
    """Return the lower median of those that are present."""
    count = tf.size(values)
    if present is not None:
        values = tf.where(present, values, values.dtype.max)
        count = tf.math.count_nonzero(present, dtype=tf.int32)
    return tf.gather(tf.sort(values), tf.maximum(count - 1, 0) // 2)


aggregations.register("geometric_median", GeometricMedian)
