"""The distance that an update went, and where on the loss it ended."""

import numpy as np

from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.gradient_health.figures import InstrumentResult, root_ratios

#: Stands for a variance of zero, in units of the largest: weights stay finite.
MIN_VARIANCE = 1e-10


def squared_distances(weights, others):
    """Return ‖w − w'‖² and ‖w'‖² of each variable, (V, 2)."""
    return np.array(
        [
            [squared_norm(w, other), squared_norm(other)]
            for w, other in zip(weights, others)
        ]
    ).reshape(-1, 2)


def update_ratio(observation):
    """Return ‖Δw‖ / ‖w‖ of the last update; NaN where ‖w‖ was 0."""
    total, each = _total_and_each(observation.update)
    return InstrumentResult(
        (float(root_ratios(*total)),), {"update_ratio": root_ratios(*each)}
    )


def distance(observation):
    """Return ‖w − w₀‖, the distance from where training began."""
    (total, _), (each, _) = _total_and_each(observation.distance)
    return InstrumentResult(
        (float(np.sqrt(total)),), {"distance": np.sqrt(each)}
    )


def _total_and_each(squares):
    return squares.sum(0), squares.T


def alpha(observation):
    """Return alpha of the last update.

    Schneider et al., "Cockpit", arXiv 2102.06604: along the update d, between
    the weights before and after it, a parabola is fitted to loss and slope at
    both ends, each weighed by the inverse of its variance between samples:

        alpha = 2 · (length of the update) / (twice the way to the minimum) − 1

    -1: the weights stand still, or the parabola bends down; 0: the update went
    to the minimum; 1: it went to the other side, as high as it began. Below -1:
    it went up from the start.
    """
    length = float(np.sqrt(observation.update[:, 0].sum()))
    if length == 0:
        return InstrumentResult((-1.0,))
    ends = observation.start, observation.end
    slopes = [end.slopes / length for end in ends]
    value = fit_alpha(
        length,
        losses=[end.loss for end in ends],
        slopes=[slope.mean() for slope in slopes],
        loss_variances=[end.losses.var(ddof=1) for end in ends],
        slope_variances=[slope.var(ddof=1) for slope in slopes],
    )
    return InstrumentResult((value,))


def fit_alpha(length, *, losses, slopes, loss_variances, slope_variances):
    """Return alpha, of pairs (before, after).

    `length` is ‖d‖; slopes are along d / ‖d‖; variances those of one sample.
    """
    # A parabola f(u) = a u² + b u + c in units of the update, fitted to f(0),
    # f(1), f'(0) and f'(1): one row each.
    design = np.array([[0, 0, 1], [1, 1, 1], [0, 1, 0], [2, 1, 0]], np.float64)
    values = np.array([*losses, *(length * s for s in slopes)], np.float64)
    noise = np.array([*loss_variances, *slope_variances], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        noise[2:] *= length**2
    if not np.isfinite([*values, *noise]).all():
        return float("nan")
    noise = np.where(noise > 0, noise, MIN_VARIANCE * noise.max() or 1.0)
    weights = 1 / np.sqrt(noise / noise.max())
    solution = np.linalg.lstsq(
        design * weights[:, None], values * weights, rcond=None
    )
    curvature, slope, _ = solution[0]
    if curvature < 0:
        return -1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(-2 * curvature / slope - 1)
