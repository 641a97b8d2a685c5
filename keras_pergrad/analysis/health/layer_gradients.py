"""Layers whose gradient vanishes or explodes.

A layer's gradient is measured by its weights: q = ‖ḡ‖ / ‖w‖ over all its
variables. It vanishes where q is less than 1e-4 of the median of the layers,
and explodes where q exceeds 1e3, so that a rate of 1e-3 would replace the
weights, or is not finite.
"""

import math

import numpy as np

from keras_pergrad.analysis.health.observation import Answer

VANISHING = 1e-4
EXPLODING = 1e3


def layers(seen):
    """Return how many layers vanish and explode, and which."""
    ratios = relative_gradients(seen)
    known = [q for q in ratios.values() if math.isfinite(q)]
    limit = VANISHING * float(np.median(known)) if known else 0.0
    vanishing = tuple(name for name, q in ratios.items() if q < limit)
    exploding = tuple(name for name, q in ratios.items() if q > EXPLODING)
    return Answer(
        {
            "gradient_vanishing_layers": float(len(vanishing)),
            "gradient_exploding_layers": float(len(exploding)),
        },
        {"relative_gradient": [ratios[layer_of(p)] for p in seen.names]},
        {"vanishing": vanishing, "exploding": exploding},
    )


def relative_gradients(seen):
    """Return layer → q; infinite for a gradient that is not finite."""
    sums = {}
    for path, g, w in zip(seen.names, seen.squared_means, seen.squared_weights):
        both = sums.setdefault(layer_of(path), [0.0, 0.0])
        both[0] += float(g)
        both[1] += float(w)
    return {name: _ratio(*both) for name, both in sums.items()}


def layer_of(path):
    """Return the path of the layer that a variable of this path is of."""
    return path.rpartition("/")[0] or path


def _ratio(gradient, weight):
    if not math.isfinite(gradient):
        return math.inf
    return math.sqrt(gradient / weight) if weight > 0 else math.nan
