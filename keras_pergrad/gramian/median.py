"""The point with the least sum of distances to all gradients."""

import math

import numpy as np
import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.common.arguments import positive_integer, positive_number
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.preference import weights_of

#: The steps end where no weight changes by more.
STILL = 1e-10


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
    >>> weights = kpg.GeometricMedian(1e-9).gramian_weights(gramian)
    >>> tf.linalg.matvec(rows, weights, transpose_a=True).numpy().round(3)
    array([2.])
    """

    def __init__(self, smoothing: float = 1e-3, *, max_iterations: int = 100):
        self.smoothing = positive_number("smoothing", smoothing)
        self.max_iterations = positive_integer("max_iterations", max_iterations)

    def gramian_weights(self, gramian, present=None):
        start = weights_of(None, gramian, present)
        gramian = tf.cast(gramian, tf.float64)
        squares = tf.linalg.diag_part(gramian)
        nothing = tf.zeros([], gramian.dtype)
        # Where most are zero, what rounding leaves of the others.
        rounded = tf.reduce_max(squares) * np.finfo("float64").eps
        middle = tf.maximum(_median(squares, present), rounded)
        least = self.smoothing**2 * middle
        least = tf.where(least > 0, least, tf.ones_like(least))

        def go_on(k, weights, change):
            return (k < self.max_iterations) & (change > STILL)

        def step(k, weights, _):
            products = tf.linalg.matvec(gramian, weights)
            own = tf.tensordot(weights, products, 1)
            distances = squares - 2 * products + own
            new = tf.math.rsqrt(tf.maximum(distances, least))
            if present is not None:
                new = tf.where(present, new, nothing)
            new = tf.math.divide_no_nan(new, tf.reduce_sum(new))
            return k + 1, new, tf.reduce_max(tf.abs(new - weights))

        state = 0, start, tf.constant(math.inf, gramian.dtype)
        return tf.while_loop(go_on, step, state, parallel_iterations=1)[1]

    def get_config(self):
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
