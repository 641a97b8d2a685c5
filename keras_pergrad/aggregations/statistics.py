"""Statistics of the gradients of samples: of a batch and of an epoch."""

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    DefinedMean,
    is_finite,
    of_samples,
)


def variance(squared_norms, squared_mean, n):
    """Return tr Σ = (Σ‖g_i‖² − n‖ḡ‖²) / (n − 1), unbiased; NaN for n = 1.

    That is the spread of the gradients g_i of n samples around their mean ḡ.
    """
    n = tf.cast(n, squared_mean.dtype)
    total = tf.reduce_sum(tf.cast(squared_norms, squared_mean.dtype))
    # Rounding can leave a tiny negative number.
    deviations = tf.maximum(total - n * squared_mean, 0)
    nan = tf.constant(math.nan, squared_mean.dtype)
    return tf.where(n > 1, deviations / tf.maximum(n - 1, 1), nan)


def squared_true_norm(squared_mean, trace, n):
    """Estimate ‖G‖², unbiased: ‖ḡ‖² less tr Σ / n; with much noise below 0.

    G is the gradient of the distribution that the samples were drawn from.
    """
    return squared_mean - trace / tf.cast(n, squared_mean.dtype)


def batch_statistics(squared_norms, squared_mean, n):
    """Return what is logged of a batch; a noise scale is a pair to divide."""
    trace = variance(squared_norms, squared_mean, n)
    true_norm = squared_true_norm(squared_mean, trace, n)
    return {
        "gradient_norm": tf.sqrt(squared_mean),
        "gradient_variance": trace,
        "gradient_noise_scale": tf.stack([trace, true_norm]),
    }


def spread_statistics(norms, squared_sums, n):
    """Return a batch's statistics, over the samples with finite gradients."""
    # `norms` are (n,) or (n, groups), `squared_sums` for each variable ‖Σ_i
    # c_i‖² of the contributions, in which samples that are not finite are
    # blank.
    norms = of_samples(norms)
    finite = is_finite(norms)
    count = tf.reduce_sum(tf.cast(finite, norms.dtype))
    squares = tf.where(finite, tf.square(norms), tf.zeros([], norms.dtype))
    squared_mean = tf.add_n([tf.cast(s, norms.dtype) for s in squared_sums])
    # A contribution is the gradient over n.
    squared_mean *= tf.square(tf.cast(n, norms.dtype) / count)
    return batch_statistics(squares, squared_mean, count)


@dataclasses.dataclass(frozen=True)
class GradientStatistics:
    """How the gradients of a batch's samples vary around their mean.

    Attributes:
        samples: how many samples there were, n.
        norm: ‖ḡ‖, the norm of the ordinary gradient.
        mean_squared_norm: the mean of ‖g_i‖² over the samples.
        variance: tr Σ, the trace of the per-sample covariance, unbiased;
            None for one sample. It is a difference of squares: below some
            millionths of `mean_squared_norm` it is rounding (float32).
        squared_true_norm: the unbiased estimate of ‖G‖², ‖ḡ‖² − tr Σ / n;
            it may be negative; None for one sample.
        noise_scale: tr Σ / ‖G‖², the simple noise scale (McCandlish et al.,
            arXiv 1812.06162): about the batch size above which more samples
            hardly help; None for one sample, or if the estimate of ‖G‖² is not
            positive.

    Norms have the unit of the gradient, the rest that of its square but for
    the noise scale, a number of samples. All are tensors without axes.

    Example:

    >>> from keras_pergrad.aggregations import GradientStatistics
    >>> statistics = GradientStatistics(64, 1.0, 3.0, 2.0, 0.97, 2.06)
    >>> f"{statistics.noise_scale:.1f} samples"
    '2.1 samples'
    """

    samples: int
    norm: float
    mean_squared_norm: float
    variance: float | None
    squared_true_norm: float | None
    noise_scale: float | None

    @classmethod
    def of(
        cls, squared_norms: tf.Tensor, squared_mean: tf.Tensor
    ) -> "GradientStatistics":
        """Compute the statistics from ‖g_i‖², (n,), and ‖ḡ‖²."""
        size: Any = squared_norms.shape[0]
        n = int(size)
        norm = float(tf.sqrt(squared_mean))
        mean_squared = float(tf.reduce_mean(squared_norms))
        trace = true_norm = scale = None
        if n > 1:
            trace = variance(squared_norms, squared_mean, n)
            true_norm = float(squared_true_norm(squared_mean, trace, n))
            trace = float(trace)
            scale = trace / true_norm if true_norm > 0 else None
        return cls(
            n,
            norm,
            mean_squared,
            variance=trace,
            squared_true_norm=true_norm,
            noise_scale=scale,
        )


class RatioOfMeans(keras.metrics.Metric):
    """The mean of the numerators over that of the denominators, or NaN."""

    # The denominator of a noise scale is an estimate that may come near zero or
    # below, so a mean of ratios is biased without bound; each mean alone is
    # unbiased. Batches with a value that is not finite are left out.

    def __init__(self, name="ratio_of_means", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.numerators = self.add_variable((), "zeros", name="numerators")
        self.denominators = self.add_variable((), "zeros", name="denominators")

    def update_state(self, values, sample_weight=None):
        """Take in a pair (numerator, denominator), as a tensor (2,)."""
        values = tf.cast(values, self.dtype)
        defined = tf.cast(tf.reduce_all(tf.math.is_finite(values)), self.dtype)
        values = tf.math.multiply_no_nan(values, defined)
        self.numerators.assign_add(values[0])
        self.denominators.assign_add(values[1])

    def result(self):
        denominators = tf.convert_to_tensor(self.denominators)
        nan = tf.constant(float("nan"), denominators.dtype)
        return tf.where(denominators > 0, self.numerators / denominators, nan)


STATISTICS = {
    "gradient_norm": DefinedMean,
    "gradient_variance": DefinedMean,
    "gradient_noise_scale": RatioOfMeans,
}
