"""The geometric median: the point with the least sum of distances to all."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import positive_integer, positive_number
from keras_pergrad.multitask.gramian import GramianAggregation, row_weights

#: The steps end where no weight changes by more.
MIN_CHANGE = 1e-10


class GeometricMedian(GramianAggregation):
    """The point with the smallest sum of distances to all gradients.

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
            shows no distance below about 3e-4 of the norms.
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
