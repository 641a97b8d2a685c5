"""Aligned-MTL: gradients made orthogonal and equally long."""

from typing import Any, Literal

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import require_one_of
from keras_pergrad.multitask.gramian import (
    GramianAggregation,
    checked_preference,
    row_weights,
)
from keras_pergrad.multitask.programs import require_solved
from keras_pergrad.multitask.spectrum import CANCELLATION, Spectrum

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
        InvalidArgumentError: gradients that nearly depend on each other have
            lengths too different for float64, before any weight changes;
            under XLA, which cannot say it, the gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.aggregations.AlignedMTL().gramian_weights(gramian).numpy()
    array([0.5 , 0.25])
    """

    def __init__(
        self,
        *,
        preference: list[float] | None = None,
        scale_mode: Literal["min", "median", "rmse"] = "min",
    ):
        self.preference: list[float] | None = checked_preference(preference)
        require_one_of("scale_mode", scale_mode, SCALES)
        self.scale_mode: Literal["min", "median", "rmse"] = scale_mode

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        preference = row_weights(self.preference, gramian, present)
        spectrum = Spectrum(gramian)
        aligned = spectrum.times(preference, -0.5) * tf.sqrt(
            self._scale(spectrum)
        )
        # Where their mean is zero, so is the one of those made orthogonal.
        threshold = CANCELLATION * tf.reduce_max(preference)
        vanishes = tf.reduce_max(tf.abs(aligned)) <= threshold
        weights = tf.where(vanishes, preference, aligned)
        return require_solved(self, spectrum.resolved, weights)

    def _scale(self, spectrum):
        # Ascending: those that are not zero come last.
        values = spectrum.values
        count = tf.math.count_nonzero(spectrum.nonzero, dtype=tf.int32)
        count = tf.maximum(count, 1)
        first = tf.size(values) - count
        if self.scale_mode == "min":
            return tf.gather(values, first)
        if self.scale_mode == "median":
            return tf.gather(values, first + (count - 1) // 2)
        nonzero = tf.where(spectrum.nonzero, values, tf.zeros_like(values))
        return tf.reduce_sum(nonzero) / tf.cast(count, values.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            "preference": self.preference,
            "scale_mode": self.scale_mode,
        }


aggregations.register("aligned_mtl", AlignedMTL)
