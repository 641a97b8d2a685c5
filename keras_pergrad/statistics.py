"""The spread of per-sample gradients around their mean, from norms alone.

n is the number of samples, g_i the gradient of one, ḡ their mean, and G the
gradient of the whole distribution that the samples were drawn from.
"""

import dataclasses
import math

import tensorflow as tf

from keras_pergrad.aggregation import is_finite, of_samples


def variance(squared_norms, squared_mean, n):
    """Return tr Σ = (Σ‖g_i‖² − n‖ḡ‖²) / (n − 1), unbiased; NaN for n = 1."""
    n = tf.cast(n, squared_mean.dtype)
    total = tf.reduce_sum(tf.cast(squared_norms, squared_mean.dtype))
    # Rounding can leave a tiny negative number.
    spread = tf.maximum(total - n * squared_mean, 0)
    nan = tf.constant(math.nan, squared_mean.dtype)
    return tf.where(n > 1, spread / tf.maximum(n - 1, 1), nan)


def squared_true_norm(squared_mean, trace, n):
    """Estimate ‖G‖², unbiased: ‖ḡ‖² less tr Σ / n; with much noise below 0."""
    return squared_mean - trace / tf.cast(n, squared_mean.dtype)


def of_batch(squared_norms, squared_mean, n):
    """Return what is logged of a batch; a noise scale is a pair to divide."""
    trace = variance(squared_norms, squared_mean, n)
    true = squared_true_norm(squared_mean, trace, n)
    return {
        "gradient_norm": tf.sqrt(squared_mean),
        "gradient_variance": trace,
        "gradient_noise_scale": tf.stack([trace, true]),
    }


def spread(norms, squared_sums, n):
    """Return a batch's statistics, over the samples with finite gradients."""
    # `norms` are (n,) or (n, groups), `squared_sums` for each variable ‖Σ_i
    # c_i‖² of the contributions, in which samples that are not finite are
    # blank.
    norms = of_samples(norms)
    finite = is_finite(norms)
    count = tf.reduce_sum(tf.cast(finite, norms.dtype))
    squares = tf.where(finite, tf.square(norms), tf.zeros([], norms.dtype))
    mean = tf.add_n([tf.cast(s, norms.dtype) for s in squared_sums])
    # A contribution is the gradient over n.
    mean *= tf.square(tf.cast(n, norms.dtype) / count)
    return of_batch(squares, mean, count)


@dataclasses.dataclass(frozen=True)
class GradientStatistics:
    """How the gradients of a batch's samples spread around their mean.

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

    >>> import keras_pergrad as kpg
    >>> statistics = kpg.GradientStatistics(64, 1.0, 3.0, 2.0, 0.97, 2.06)
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
    def of(cls, squared_norms, squared_mean):
        """Make the statistics from ‖g_i‖², (n,), and ‖ḡ‖²."""
        n = int(squared_norms.shape[0])
        norm = float(tf.sqrt(squared_mean))
        mean = float(tf.reduce_mean(squared_norms))
        if n < 2:
            return cls(n, norm, mean, None, None, None)
        trace = variance(squared_norms, squared_mean, n)
        true = float(squared_true_norm(squared_mean, trace, n))
        scale = float(trace) / true if true > 0 else None
        return cls(n, norm, mean, float(trace), true, scale)
