"""Gradients made orthogonal and equally long: Aligned-MTL."""

from typing import Literal

import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.preference import preferences, weights_of
from keras_pergrad.gramian.solved import require_solved
from keras_pergrad.gramian.spectrum import CANCELS, Spectrum

SCALES = ("min", "median", "rmse")


class AlignedMTL(GramianAggregation):
    """The mean of gradients whose principal components are equally large.

    ```
    w = √λ G^(−½) p      λ: by `scale_mode`; p = 1/m for each row
    ```

    J is replaced by the nearest matrix whose singular values are all √λ, so
    that the linear system of the gradients has the condition number 1.
    Senushkin et al., "Independent component alignment for multi-task
    learning", arXiv 2305.19000. Weights may be negative.

    By name `"aligned_mtl"`.

    Args:
        preference: m numbers p, the weights of the rows in the mean; None:
            1/m each. For tasks, whose number is known.
        scale_mode: λ is the least ("min"), the median (the lower one of two)
            or the mean ("rmse") of the eigenvalues of G that are not zero.

    If the aggregated gradient is zero, w = p.

    Raises:
        ValueError: an argument is out of range.
        InvalidArgumentError: lengths differ by more than float64 tells apart
            (about 1e15 times), before any weight changes; under XLA, which
            cannot say it, the gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.AlignedMTL().gramian_weights(gramian).numpy()
    array([0.5 , 0.25])
    """

    def __init__(
        self,
        *,
        preference: list[float] | None = None,
        scale_mode: Literal["min", "median", "rmse"] = "min",
    ):
        self.preference = preferences(preference)
        if scale_mode not in SCALES:
            raise ValueError(
                f"`scale_mode` must be one of {SCALES}. Received: "
                f"scale_mode={scale_mode!r}"
            )
        self.scale_mode = scale_mode

    def gramian_weights(self, gramian, present=None):
        preferred = weights_of(self.preference, gramian, present)
        spectrum = Spectrum(gramian)
        aligned = spectrum.times(preferred, -0.5) * tf.sqrt(
            self._scale(spectrum)
        )
        # Where their mean is zero, so is the one of those made orthogonal.
        least = CANCELS * tf.reduce_max(preferred)
        nothing = tf.reduce_max(tf.abs(aligned)) <= least
        weights = tf.where(nothing, preferred, aligned)
        return require_solved(self, spectrum.resolved, weights)

    def _scale(self, spectrum):
        # Ascending: those that are not zero come last.
        values = spectrum.values
        count = tf.reduce_sum(tf.cast(spectrum.known, tf.int32))
        first = tf.size(values) - tf.maximum(count, 1)
        if self.scale_mode == "min":
            return tf.gather(values, first)
        if self.scale_mode == "median":
            return tf.gather(values, first + (tf.maximum(count, 1) - 1) // 2)
        known = tf.where(spectrum.known, values, tf.zeros_like(values))
        return tf.reduce_sum(known) / tf.cast(
            tf.maximum(count, 1), values.dtype
        )

    def get_config(self):
        return {
            "preference": self.preference,
            "scale_mode": self.scale_mode,
        }


aggregations.register("aligned_mtl", AlignedMTL)
