"""The batch size, from the gradient noise scale.

McCandlish et al., "An empirical model of large-batch training", arXiv
1812.06162: with the noise scale 𝔅 and the best rate for each batch size B, a
training to a given loss takes about S (1 + 𝔅 / B) updates and E (1 + B / 𝔅)
samples, S and E being the fewest. Over a training, 𝔅 is averaged over its
updates by the way that each goes, 1 / (1 + 𝔅 / B); for B well below 𝔅 this is
the harmonic mean, n over the mean of the probe's signal to noise ratios.
"""

from keras_pergrad.analysis.health.judgement import HealthAdvice, series

# The advised batch takes at most this many times the fewest samples.
SAMPLES = 1.25
# A batch is too large where it takes this many times the fewest samples,
# and too small where it takes as many times the fewest updates as the square.
TIMES = 3.0
FEWEST = 3


def noise_scale(readings):
    """Return 𝔅 of a training, or None where no signal stands out."""
    ratios = series(readings, "gradient_snr")
    if len(ratios) < FEWEST or sum(ratios) <= 0:
        return None
    return readings[-1].samples * len(ratios) / sum(ratios)


def advised_batch(readings):
    """Return the largest power of 2 within `SAMPLES`, or None."""
    scale = noise_scale(readings)
    if scale is None:
        return None
    return _largest_within(scale)


def _largest_within(scale):
    return 1 << max(int((SAMPLES - 1) * scale), 1).bit_length() - 1


def judge(readings, fit):
    """Advise another batch size where it is far from what the noise asks."""
    scale, size = noise_scale(readings), fit.batch_size
    if scale is None or not size:
        return []
    samples, updates = 1 + size / scale, 1 + scale / size
    advised = _largest_within(scale)
    if samples <= TIMES and updates <= TIMES**2:
        return []
    large = samples > TIMES
    text = (
        f"The gradient noise scale is {scale:.0f}: batches of {size} take "
        f"about {samples:.3g} times the fewest samples and {updates:.3g} "
        f"times the fewest updates that reach a loss. Batches of {advised} "
        f"take {1 + advised / scale:.3g} and {1 + scale / advised:.3g} times; "
        f"change the rate by {_factor(fit, advised / size):.2g}."
    )
    return [
        HealthAdvice(
            "batch_too_large" if large else "batch_too_small",
            text,
            {
                "noise_scale": scale,
                "batch_size": size,
                "advised_batch_size": advised,
            },
            is_fault=False,
        )
    ]


def _factor(fit, times):
    """Return the factor of the rate for a batch of so many times the size.

    Linear for SGD; a root where the gradient is divided by its own size
    (Malladi et al., arXiv 2205.10287).
    """
    return times if fit.optimizer == "SGD" else times**0.5
