"""The norm, inner-product and orthogonality test of a batch's size.

Bollapragada, Byrd, Nocedal, "Adaptive sampling strategies for stochastic
optimization", arXiv 1710.11258. Each is given as the smallest bound by which
the batch passes. With n samples' gradients g_i and their mean ḡ:

    norm:          √(Σ ‖g_i − ḡ‖² / (n (n − 1))) / ‖ḡ‖
    inner product: √(Σ (⟨g_i, ḡ⟩ − ‖ḡ‖²)² / (n (n − 1))) / ‖ḡ‖²
    orthogonality: √(Σ ‖g_i − ⟨g_i, ḡ⟩ ḡ / ‖ḡ‖²‖² / (n (n − 1))) / ‖ḡ‖

The squares of the last two add up to that of the first. All are NaN where ḡ
is zero.
"""

import numpy as np

from keras_pergrad.analysis.health.observation import Answer


def norm_test(seen):
    """Return the bound of the norm test, also of each variable."""
    each = zip(seen.traces / seen.n, seen.squared_means)
    return Answer(
        {"gradient_norm_test": _bound(seen.trace / seen.n, seen.squared_mean)},
        {"norm_test": [_bound(*pair) for pair in each]},
    )


def inner_product_test(seen):
    """Return the bound of the inner-product test."""
    square = seen.squared_mean
    spread = np.square(seen.dots - square).sum() / (seen.n * (seen.n - 1))
    return Answer({"gradient_inner_product_test": _bound(spread, square**2)})


def orthogonality_test(seen):
    """Return the bound of the orthogonality test."""
    square = seen.squared_mean
    with np.errstate(divide="ignore", invalid="ignore"):
        across = seen.squared_norms - np.square(seen.dots) / square
    # Rounding can leave a tiny negative number.
    across = np.maximum(across, 0).sum() / (seen.n * (seen.n - 1))
    return Answer({"gradient_orthogonality_test": _bound(across, square)})


def _bound(square, against):
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bound = np.sqrt(np.float64(square) / np.float64(against))
    return float(bound) if against else float("nan")
