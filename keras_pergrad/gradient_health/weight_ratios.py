"""The signal to noise ratio of single weights, and the evidence in it.

Of weight k, with the mean ḡ_k and the variance σ_k² (with 1 / n) of its n
samples' gradients:

    r_k = ḡ_k² / σ_k²

Its mean over the weights is the signal to noise ratio of Liu et al.,
"Understanding why neural networks generalize well through GSNR of
parameters", arXiv 2001.07384. Mahsereci et al., "Early stopping without a
validation set", arXiv 1703.09580, stop once

    1 − (1 / D) Σ_k n ḡ_k² / σ̂_k²  =  1 − (n − 1) · mean(r_k)

exceeds 0, σ̂_k² with 1 / (n − 1). Weights without any gradient, such as
embeddings of words that the samples do not have, are left out of both; so are
those whose gradient is rounding, as that of an attention's key bias.
"""

import numpy as np
import tensorflow as tf

from keras_pergrad.gradient_health.figures import InstrumentResult

#: A variance below this share of the mean square is rounding.
ROUNDING_SHARE = 1e-6
#: A gradient below so many rounding units of the largest one is rounding, too.
ROUNDING_UNITS = 16


def snr_sums(means, squares, n):
    """Return Σ r_k of each variable, and of how many weights, (V, 2).

    `squares` are Σ_i g_ik², in the variables' shapes.
    """
    largest = tf.reduce_max(tf.stack([tf.reduce_max(s) for s in squares]))
    epsilon = 2**-52 if largest.dtype == tf.float64 else 2**-23
    threshold = largest * (ROUNDING_UNITS * epsilon) ** 2
    return tf.stack(
        [
            _variable_ratios(mean, square, n, threshold=threshold)
            for mean, square in zip(means, squares)
        ]
    )


def _variable_ratios(mean, squares, n, *, threshold):
    second_moment = squares / tf.cast(n, squares.dtype)
    signal = tf.square(tf.cast(mean, squares.dtype))
    noise = tf.maximum(second_moment - signal, ROUNDING_SHARE * second_moment)
    # Not `squares > threshold`: NaN must count, and show in the figure.
    has_gradient = tf.logical_not(squares <= threshold)
    ratio = tf.where(has_gradient, signal / tf.where(has_gradient, noise, 1), 0)
    count = tf.reduce_sum(tf.cast(has_gradient, squares.dtype))
    return tf.stack([tf.reduce_sum(ratio), count])


def signal_to_noise(observation):
    """Return the mean of r_k over all weights, and over each variable's."""
    return InstrumentResult(
        (float(_mean(observation.ratios.sum(0))),),
        {"snr_by_weight": _mean(observation.ratios)},
    )


def stopping_evidence(observation):
    """Return the criterion of Mahsereci et al., also of each variable."""
    n = observation.samples
    return InstrumentResult(
        (float(1 - (n - 1) * _mean(observation.ratios.sum(0))),),
        {"early_stopping": 1 - (n - 1) * _mean(observation.ratios)},
    )


def _mean(sums):
    """Return the mean from `snr_sums`, (..., 2); NaN: of no weight."""
    total, count = np.moveaxis(sums, -1, 0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
