"""Alpha: where an update went on the local quadratic of the loss.

Schneider et al., "Cockpit", arXiv 2102.06604: along the update d, between the
weights before and after it, the parabola is fitted to loss and slope at both
ends, each weighed by the inverse of its variance between samples. Then

    alpha = 2 · (length of the update) / (twice the way to the minimum) − 1

-1: the weights stand still, or the parabola bends down; 0: the update went to
the minimum; 1: it went to the other side, as high as it began. Below -1: it
went up from the start.
"""

import numpy as np

from keras_pergrad.analysis.health.observation import Answer

#: The variance that counts where there is none, in units of the largest.
NOTHING = 1e-10


def alpha(seen):
    """Return alpha of the last update."""
    length = float(np.sqrt(seen.update[:, 0].sum()))
    if length == 0:
        return Answer({"gradient_alpha": -1.0})
    slopes = [end["slopes"] / length for end in seen.ends]
    value = position(
        length,
        [end["loss"] for end in seen.ends],
        [s.mean() for s in slopes],
        [end["losses"].var(ddof=1) for end in seen.ends],
        [s.var(ddof=1) for s in slopes],
    )
    return Answer({"gradient_alpha": value})


def position(length, losses, slopes, loss_variances, slope_variances):
    """Return alpha, of pairs (before, after).

    `length` is ‖d‖; slopes are along d / ‖d‖; variances those of one sample.
    """
    # In units of the update: f(u) = a u² + b u + c, f(0), f(1), f'(0), f'(1).
    seen = np.array([[0, 0, 1], [1, 1, 1], [0, 1, 0], [2, 1, 0]], np.float64)
    values = np.array([*losses, *(length * s for s in slopes)], np.float64)
    noise = np.array([*loss_variances, *slope_variances], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        noise[2:] *= length**2
    if not np.isfinite([*values, *noise]).all():
        return float("nan")
    noise = np.where(noise > 0, noise, NOTHING * noise.max() or 1.0)
    weight = 1 / np.sqrt(noise / noise.max())
    fit = np.linalg.lstsq(seen * weight[:, None], values * weight, rcond=None)
    bend, slope, _ = fit[0]
    if bend < 0:
        return -1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(-2 * bend / slope - 1)
