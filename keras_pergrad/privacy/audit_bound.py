"""The number of correct guesses that an epsilon allows, and what follows.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
arXiv 2305.08846: m canaries are in the data with probability ½ each;
someone who sees the result guesses for r of them whether they were, and v
guesses are right.
"""

import numpy as np

_MAX_EPSILON = 1e3
_TOLERANCE = 1e-6


def p_value(num_canaries, guesses, correct, epsilon, delta):
    """Bound how likely so many correct guesses are under an epsilon."""
    from scipy import stats

    rate = 1 / (1 + np.exp(-epsilon))
    at_least = stats.binom.sf(correct - 1, guesses, rate)
    # Delta costs at most 2 · canaries · delta times the largest of P[correct −
    # i ≤ guessed right < correct] / i, over all i.
    counts = np.arange(1, correct + 1)
    tail_masses = np.cumsum(stats.binom.pmf(correct - counts, guesses, rate))
    max_ratio = np.max(tail_masses / counts, initial=0.0)
    return float(min(at_least + 2 * num_canaries * delta * max_ratio, 1))


def epsilon_lower_bound(num_canaries, guesses, correct, delta, confidence):
    """Return the largest epsilon that the guesses rule out; 0 for none."""

    def is_ruled_out(epsilon):
        p = p_value(num_canaries, guesses, correct, epsilon, delta)
        return p <= 1 - confidence

    # The p-value grows with epsilon: double until it is large, then bisect.
    if not is_ruled_out(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_ruled_out(high) and high < _MAX_EPSILON:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if is_ruled_out(middle) else (low, middle)
    return low
