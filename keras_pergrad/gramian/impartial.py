"""Equal projections of the aggregated gradient on all gradients: IMTL-G."""

import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.spectrum import Spectrum


class IMTLG(GramianAggregation):
    """The combination that all gradients have the same part in.

    ```
    v = G⁺ (‖g_1‖, …, ‖g_m‖)      G⁺ the pseudoinverse of the Gramian
    w = v / Σ v_i
    ```

    so that Σ w_i g_i has the same inner product with every g_i / ‖g_i‖. Liu et
    al., "Towards impartial multi-task learning", ICLR 2021, in the form for
    gradients that depend on each other (Quinton and Rey, arXiv 2406.16232).
    Weights may be negative. If |Σ v_i| < 1e-12, all are 0.

    By name `"imtlg"`. It takes no arguments.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.IMTLG().gramian_weights(gramian).numpy().round(3)
    array([0.667, 0.333])
    """

    def gramian_weights(self, gramian, present=None):
        del present  # Their rows of zeros are in no direction.
        norms = tf.sqrt(tf.linalg.diag_part(tf.cast(gramian, tf.float64)))
        solved = Spectrum(gramian).times(norms, -1.0)
        total = tf.reduce_sum(solved)
        defined = tf.abs(total) >= 1e-12
        safe = tf.where(defined, total, tf.ones_like(total))
        return tf.where(defined, solved / safe, tf.zeros_like(solved))


aggregations.register("imtlg", IMTLG)
