"""The draws: how many trials, and the point of each."""

import json
import math
from typing import Any

import numpy as np

#: Separates these draws from others made from the same seed.
_SEARCH_DOMAIN = 0x736561
#: What a point may set of `PrivateTraining`: the noise is relative to it.
CLIP_NORM = "clip_norm"


def trial_distribution(name, mean):
    """Return the distribution of the number of trials, of SciPy."""
    from scipy import optimize, stats

    if name == "poisson":
        return stats.poisson(mean)
    if name == "geometric" or mean == 1:
        return stats.geom(1 / mean)
    # P(k) ∝ (1 - gamma)^k / k. With t = -log(gamma) its mean is (e^t - 1) / t.
    t: Any = optimize.brentq(
        lambda t: math.expm1(t) - mean * t,
        min(mean - 1, 1),
        2 * math.log(mean) + 2,
    )
    return stats.logser(-math.expm1(-t))


def draw_trials(space, search, seed):
    """Return the trials: of each its point and its seeds, for JSON."""

    def make_generator(number):
        return np.random.default_rng([_SEARCH_DOMAIN, seed % 2**128, number])

    distribution = trial_distribution(
        search.distribution, search.expected_trials
    )
    count = int(distribution.rvs(random_state=make_generator(0)))
    trials = []
    for number in range(1, count + 1):
        generator = make_generator(number)
        seeds = generator.integers(2**32, size=3)
        point = {
            name: _draw_value(name, choice, generator)
            for name, choice in space.items()
        }
        # That of noise and batches has more bits.
        seeds = seeds[0], generator.integers(2**63), seeds[2]
        trials.append({"seeds": [int(s) for s in seeds], "point": point})
    return trials


def _draw_value(name, choice, generator):
    if callable(choice):
        value = choice(generator)
    else:
        value = choice[int(generator.integers(len(choice)))]
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        raise ValueError(
            "The values of `space` are recorded, so that the search can go on: "
            "expected numbers, strings, booleans, None or lists. Received: "
            f"{name}={value!r}. Give a name, and let make_model look it up."
        ) from None
