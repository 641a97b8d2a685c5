"""IMTL-G: equal projections of the aggregated gradient on all gradients."""

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.multitask.gramian import GramianAggregation, row_weights
from keras_pergrad.multitask.programs import require_solved
from keras_pergrad.multitask.spectrum import (
    CANCELLATION,
    Spectrum,
    lengths_and_cosines,
)


class IMTLG(GramianAggregation):
    """The combination in which all gradients have an equal share.

    ```
    v = G⁺ (‖g_1‖, …, ‖g_m‖)      G⁺ the pseudoinverse of the Gramian
    w = v / Σ v_i
    ```

    so that Σ w_i g_i has the same inner product with every g_i / ‖g_i‖. Liu et
    al., "Towards impartial multi-task learning", ICLR 2021, in the form for
    gradients that depend on each other (Quinton and Rey, arXiv 2406.16232).
    Weights may be negative. Units do not matter: a loss times a number gets
    the same part, also at lengths that differ 10,000 times in float32. Where
    v = 0, such as for two opposite gradients of one length, w follows the
    lengths, and the combination is 0; where all gradients are 0, w_i = 1/m.

    By name `"imtlg"`. It takes no arguments.

    Raises:
        InvalidArgumentError: the parts of v cancel, so that no weights add up
            to 1, before any weight of the model changes; under XLA, which
            cannot say it, the gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.aggregations.IMTLG().gramian_weights(gramian).numpy().round(3)
    array([0.667, 0.333])
    """

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        lengths, _ = lengths_and_cosines(gramian)
        solution, is_known = Spectrum(gramian).solve(lengths)
        # In units of 1 / length: without any, no direction has equal parts.
        vanishes = tf.reduce_max(tf.abs(solution) * lengths) <= CANCELLATION
        all_zero = tf.reduce_all(lengths <= 0)
        mean = row_weights(None, gramian, present)
        fallback = tf.where(all_zero, mean, lengths)
        solution = tf.where(vanishes, fallback, solution)
        total = tf.reduce_sum(solution)
        is_known &= tf.abs(total) > CANCELLATION * tf.reduce_sum(
            tf.abs(solution)
        )
        weights = tf.math.divide_no_nan(solution, total)
        return require_solved(self, is_known | all_zero, weights)


aggregations.register("imtlg", IMTLG)
