"""The way that weights have gone: of the last update, and of a training."""

import numpy as np

from keras_pergrad.analysis.health.observation import Answer
from keras_pergrad.common.squared_norms import squared_norm


def squared_distances(weights, others):
    """Return ‖w − w'‖² and ‖w'‖² of each variable, (V, 2)."""
    return np.array(
        [
            [squared_norm(w, other), squared_norm(other)]
            for w, other in zip(weights, others)
        ]
    ).reshape(-1, 2)


def update_ratio(seen):
    """Return ‖Δw‖ / ‖w‖ of the last update; NaN where ‖w‖ was 0."""
    whole, each = _whole_and_each(seen.update)
    figures = {"gradient_update_ratio": float(_ratio(*whole))}
    return Answer(figures, {"update_ratio": _ratio(*each)})


def distance(seen):
    """Return ‖w − w₀‖, the distance from where training began."""
    (whole, _), (each, _) = _whole_and_each(seen.distance)
    figures = {"gradient_distance": float(np.sqrt(whole))}
    return Answer(figures, {"distance": np.sqrt(each)})


def _whole_and_each(squares):
    return squares.sum(0), squares.T


def _ratio(square, against):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(against > 0, np.sqrt(square / against), np.nan)
