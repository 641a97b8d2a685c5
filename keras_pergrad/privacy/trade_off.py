"""The bounds that all pairs of epsilon and delta of a training give together.

Each pair bounds an attacker who tells from the result whether someone's
example was in the data. If he wrongly says so of a share α of those whose
examples were not, he rightly says so of at most e^epsilon · α + delta of
those whose examples were, and of 1 − (1 − α − delta) / e^epsilon.
"""

import functools
import math
from typing import Any

import numpy as np

from keras_pergrad.privacy.accounting import (
    accountant_name,
    epsilon_of_delta,
    loss_distribution,
)

#: The probability with which the Gaussian parameter need not hold.
MU_DELTA = 1e-10
_DELTAS = tuple(float(f"1e-{k}") for k in range(2, 11))
_FALSE_POSITIVE_RATES = (1e-2, 1e-3, 1e-4, 1e-5)
#: Losses are rounded on coarser grids than for epsilon alone, which takes a
#: tenth of the time and enlarges the bounds in the fourth digit.
_INTERVAL, _ROUGH_INTERVAL, _POINTS = 1e-3, 1e-2, 4001
#: Above it nothing is promised, and the distribution is long.
_MAX_EPSILON = 100.0


@functools.lru_cache(maxsize=32)
def trade_off(phases: Any) -> dict[str, Any]:
    """Return the entries of a `Statement` beside epsilon: copy the lists.

    "mu", the Gaussian parameter, None where it is not known; "epsilons", pairs
    (delta, epsilon); "true_positive_rates", pairs (rate of false positives,
    the largest rate of true positives that an attacker can have). `phases`
    are phases with steps, (`Mechanism`, steps) each.
    """
    if not phases:
        pairs = [[rate, rate] for rate in _FALSE_POSITIVE_RATES]
        epsilons = [[delta, 0.0] for delta in _DELTAS]
        return {"mu": 0.0, "epsilons": epsilons, "true_positive_rates": pairs}
    by_delta = epsilon_of_delta(phases, _ROUGH_INTERVAL)
    is_exact = accountant_name(phases) == "PLD"
    has_curve = is_exact and by_delta(MU_DELTA) <= _MAX_EPSILON
    if has_curve:
        has_users = any(m.examples_per_user > 1 for m, _ in phases)
        interval = _ROUGH_INTERVAL if has_users else _INTERVAL
        losses: Any = loss_distribution(phases, interval)
        by_delta = losses.get_epsilon_for_delta
        epsilons = np.linspace(0, by_delta(MU_DELTA), _POINTS)
        deltas = losses.get_delta_for_epsilon(epsilons)
    else:
        # Above so large an epsilon a few points are enough, and take seconds.
        deltas = np.geomspace(0.5, MU_DELTA, 10 if is_exact else 100)
        epsilons = np.asarray([by_delta(delta) for delta in deltas])
    pairs = [[delta, float(by_delta(delta))] for delta in _DELTAS]
    return {
        "mu": gaussian_parameter(epsilons, deltas) if has_curve else None,
        "epsilons": [pair for pair in pairs if pair[1] < math.inf],
        "true_positive_rates": [
            [rate, true_positive_rate(rate, epsilons, deltas)]
            for rate in _FALSE_POSITIVE_RATES
        ],
    }


def true_positive_rate(rate, epsilons, deltas):
    """Return an attacker's largest rate at a rate of false positives."""
    finite = epsilons <= _MAX_EPSILON
    epsilons, deltas = epsilons[finite], deltas[finite]
    bounds = np.minimum(
        np.exp(epsilons) * rate + deltas,
        1 - np.exp(-epsilons) * (1 - rate - deltas),
    )
    return float(np.clip(np.min(bounds, initial=1.0), rate, 1))


def bound_curve(entries: Any, rates: np.ndarray) -> np.ndarray:
    """Return an attacker's largest rates at rates of false positives.

    All that the entries of a `Statement` say together, which is no less than
    what the training gives: the pairs, and the Gaussian parameter.
    """
    from scipy.special import ndtr, ndtri

    pairs = [(entries["delta"], entries["epsilon"]), *entries["epsilons"]]
    deltas, epsilons = np.array(pairs, float).T
    bounds = [true_positive_rate(rate, epsilons, deltas) for rate in rates]
    if entries["mu"] is None:
        return np.asarray(bounds)
    gaussian = ndtr(ndtri(rates) + entries["mu"]) + MU_DELTA
    return np.minimum(bounds, gaussian)


def gaussian_parameter(epsilons, deltas):
    """Return the least mu whose Gaussian curve is nowhere below a curve."""
    # Both deltas are convex functions of x = e^epsilon. Between two points
    # the given one is below its chord, and the Gaussian one above its tangent
    # in their middle: the comparison of both at the points is enough.
    from scipy.special import ndtr

    middle = (epsilons[1:] + epsilons[:-1]) / 2
    x = np.exp(middle)

    def is_enough(mu):
        slope = ndtr(-middle / mu - mu / 2)
        height = ndtr(-middle / mu + mu / 2) - x * slope
        return all(
            np.all(
                deltas[ends]
                <= height - (np.exp(epsilons[ends]) - x) * slope + MU_DELTA
            )
            for ends in (slice(1, None), slice(None, -1))
        )

    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        mu = (low + high) / 2
        low, high = (low, mu) if is_enough(mu) else (mu, high)
    return high
