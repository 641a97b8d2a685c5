"""Equal projections of the aggregated gradient on all gradients: IMTL-G."""

import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.preference import weights_of
from keras_pergrad.gramian.solved import require_solved
from keras_pergrad.gramian.spectrum import CANCELS, Spectrum, units_of


class IMTLG(GramianAggregation):
    """The combination that all gradients have the same part in.

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
    >>> kpg.IMTLG().gramian_weights(gramian).numpy().round(3)
    array([0.667, 0.333])
    """

    def gramian_weights(self, gramian, present=None):
        lengths, _ = units_of(gramian)
        found, known = Spectrum(gramian).solve(lengths)
        # In units of 1 / length: without any, no direction has equal parts.
        nothing = tf.reduce_max(tf.abs(found) * lengths) <= CANCELS
        no_row = tf.reduce_all(lengths <= 0)
        mean = weights_of(None, gramian, present)
        instead = tf.where(no_row, mean, lengths)
        found = tf.where(nothing, instead, found)
        total = tf.reduce_sum(found)
        known &= tf.abs(total) > CANCELS * tf.reduce_sum(tf.abs(found))
        weights = tf.math.divide_no_nan(found, total)
        return require_solved(self, known | no_row, weights)


aggregations.register("imtlg", IMTLG)
