"""Tests of a batch's size: norm, inner product, orthogonality, CABS.

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

from keras_pergrad.gradient_health.figures import InstrumentResult, root_ratios


def norm_test(observation):
    """Return the bound of the norm test, also of each variable."""
    n = observation.samples
    total = root_ratios(observation.trace / n, observation.squared_mean)
    each = root_ratios(observation.traces / n, observation.squared_means)
    return InstrumentResult((float(total),), {"norm_test": each})


def inner_product_test(observation):
    """Return the bound of the inner-product test."""
    squared_mean = observation.squared_mean
    variance = np.square(observation.dots - squared_mean).sum() / (
        observation.samples * (observation.samples - 1)
    )
    bound = root_ratios(variance, squared_mean**2)
    return InstrumentResult((float(bound),))


def orthogonality_test(observation):
    """Return the bound of the orthogonality test."""
    squared_mean = observation.squared_mean
    with np.errstate(divide="ignore", invalid="ignore"):
        orthogonal = (
            observation.squared_norms
            - np.square(observation.dots) / squared_mean
        )
    # Rounding can leave a tiny negative number.
    orthogonal = np.maximum(orthogonal, 0).sum() / (
        observation.samples * (observation.samples - 1)
    )
    return InstrumentResult((float(root_ratios(orthogonal, squared_mean)),))


def cabs(observation):
    """Return the number of samples that CABS advises.

    Balles, Romero, Hennig, "Coupling adaptive batch sizes with learning rates",
    arXiv 1612.05086: rate · tr Σ / loss, for plain SGD and a loss whose least
    value is about 0. Σ is the biased covariance, with 1 / n.
    """
    biased_trace = (
        observation.trace * (observation.samples - 1) / observation.samples
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        size = (
            observation.learning_rate
            * biased_trace
            / np.float64(observation.data_loss)
        )
    return InstrumentResult((float(size),))
