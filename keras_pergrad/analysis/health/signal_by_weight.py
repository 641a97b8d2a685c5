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

from keras_pergrad.analysis.health.observation import Answer

#: A variance below this part of the mean square is rounding.
ROUNDING = 1e-6
#: So are gradients below this many units of it, of the largest.
UNITS = 16


def ratios(means, squares, n):
    """Return Σ r_k of each variable, and of how many weights, (V, 2).

    `squares` are Σ_i g_ik², in the variables' shapes.
    """
    largest = tf.reduce_max(tf.stack([tf.reduce_max(s) for s in squares]))
    epsilon = 2**-52 if largest.dtype == tf.float64 else 2**-23
    least = largest * (UNITS * epsilon) ** 2
    return tf.stack(
        [_of_variable(*pair, n, least) for pair in zip(means, squares)]
    )


def _of_variable(mean, squares, n, least):
    second = squares / tf.cast(n, squares.dtype)
    signal = tf.square(tf.cast(mean, squares.dtype))
    noise = tf.maximum(second - signal, ROUNDING * second)
    moved = tf.logical_not(squares <= least)  # NaN counts
    ratio = tf.where(moved, signal / tf.where(moved, noise, 1), 0)
    count = tf.reduce_sum(tf.cast(moved, squares.dtype))
    return tf.stack([tf.reduce_sum(ratio), count])


def signal_to_noise(seen):
    """Return the mean of r_k over all weights, and over each variable's."""
    return Answer(
        {"gradient_snr_by_weight": float(_mean(seen.ratios.sum(0)))},
        {"snr_by_weight": _mean(seen.ratios)},
    )


def stopping_evidence(seen):
    """Return the criterion of Mahsereci et al., also of each variable."""
    n = seen.n
    return Answer(
        {
            "gradient_early_stopping": float(
                1 - (n - 1) * _mean(seen.ratios.sum(0))
            )
        },
        {"early_stopping": 1 - (n - 1) * _mean(seen.ratios)},
    )


def _mean(sums):
    """Return the mean from `ratios`, (..., 2); NaN: of no weight."""
    total, count = np.moveaxis(sums, -1, 0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
