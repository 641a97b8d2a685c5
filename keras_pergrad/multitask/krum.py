"""Krum: the gradients that lie nearest to most others."""

import math
from typing import Any

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.batches import only_if
from keras_pergrad.multitask.gramian import GramianAggregation


class Krum(GramianAggregation):
    """The mean of the gradients that are closest to their nearest neighbours.

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
        n_selected: how many gradients are averaged.

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
        """The smallest number of gradients that it accepts."""
        return max(self.n_byzantine + 3, self.n_selected)

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        gramian = tf.cast(gramian, tf.float64)
        m = tf.shape(gramian)[0]
        present_count = m
        squares = tf.linalg.diag_part(gramian)
        distances = squares[:, None] + squares[None, :] - 2 * gramian
        # Rounding makes some negative.
        distances = tf.sqrt(tf.maximum(distances, 0))
        infinite = tf.constant(math.inf, gramian.dtype)
        if present is not None:
            present_count = tf.math.count_nonzero(present, dtype=tf.int32)
            both_present = present[:, None] & present[None, :]
            distances = tf.where(both_present, distances, infinite)
        enough = present_count >= self.fewest
        text = _TOO_FEW.format(self, self.fewest)
        with only_if(enough, [text, present_count]):
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
