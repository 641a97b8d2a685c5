"""From the inner products of all gradients to one gradient."""

import abc
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregation import Aggregation, is_finite
from keras_pergrad.logs import DefinedMean


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
    >>> class Agreeing(kpg.GramianAggregation):
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

    needs = "gramian"

    #: Whether rows that nothing changes get the weight 1 and not 1 / m.
    adds_up = False

    @abc.abstractmethod
    def gramian_weights(self, gramian, present=None) -> Any:
        """Return the weight of each row in the aggregated gradient, (m,).

        Args:
            gramian: (m, m), symmetric, with the inner products of all rows. Its
                type, float32 or float64, tells how exact they are; shipped
                aggregations compute in float64.
            present: (m,) booleans; where false, the row and column of the
                Gramian are zero and the weight must be 0, and the others must
                be as without that row. None: all are there.
        """

    def weights(self, norms):
        raise ValueError(
            f"{type(self).__name__} weighs gradients by the inner products of "
            "all of them, which norms do not tell. Use gramian_weights("
            "gramian); a gradient mode of your own looks at `needs` of its "
            "aggregation. Received: norms"
        )

    def mean_weights(self, gramian):
        """Return each row's weight in the mean, and which rows are finite.

        Args:
            gramian: (m, m), of the rows g_i, of float32 or float64. NaN or
                infinity on its diagonal leaves a row out.

        Returns:
            (weights, finite), (m,) in float64 and (m,) booleans. The aggregated
            gradient is Σ weights_i g_i / m; weights of other rows are 0.
        """
        finite = is_finite(tf.linalg.diag_part(gramian))
        both = finite[:, None] & finite[None, :]
        gramian = tf.where(both, gramian, tf.zeros([], gramian.dtype))
        gramian = (gramian + tf.transpose(gramian)) / 2
        weights: Any = self.gramian_weights(gramian, finite)
        weights = tf.cast(weights, tf.float64)
        weights = tf.where(finite, weights, tf.zeros([], tf.float64))
        rows = tf.cast(tf.shape(finite)[0], tf.float64)
        if self.adds_up:
            known = tf.reduce_sum(tf.cast(finite, tf.float64))
            return weights * tf.math.divide_no_nan(rows, known), finite
        return weights * rows, finite

    @property
    def log_metrics(self):
        return {
            "conflict_share": DefinedMean,
            "nonfinite_samples": keras.metrics.Sum,
        }

    def gramian_statistics(self, gramian):
        """Return what is logged of a Gramian: scalars by name.

        `conflict_share` is the share of pairs of rows whose inner product is
        negative; NaN for a single row.
        """
        finite = is_finite(tf.linalg.diag_part(gramian))
        known = tf.reduce_sum(tf.cast(finite, tf.float32))
        against = tf.cast(gramian < 0, tf.float32)
        pairs = known * (known - 1)
        return {
            "conflict_share": tf.reduce_sum(against) / pairs,
            "nonfinite_samples": tf.cast(tf.size(finite), tf.float32) - known,
        }
