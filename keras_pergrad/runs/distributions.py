"""The two distributions that a comparison of few runs needs.

NumPy has neither; both follow from the incomplete gamma and beta functions,
by the series and continued fractions of Abramowitz and Stegun, 6.5 and 26.5.
"""

import math
import statistics

_SMALL = 1e-300
_CLOSE = 1e-14
_STEP = 1e-9


def chi_square_quantile(probability, degrees):
    """Below which a chi-square number is with this probability.

    Args:
        probability: between 0 and 1, without the ends.
        degrees: of freedom; positive, need not be whole.
    """
    # Newton's method on a logarithmic scale from Wilson and Hilferty's
    # start, inside a bracket that halves where a step would leave it.
    low, high = -700.0, math.log(degrees) + 50.0
    spread = 2 / (9 * degrees)
    normal = statistics.NormalDist().inv_cdf(probability)
    start = 1 - spread + normal * math.sqrt(spread)
    place = math.log(degrees) + 3 * math.log(max(start, 1e-3))
    for _ in range(200):
        half = 0.5 * math.exp(place)
        excess = _lower_gamma(0.5 * degrees, half) - probability
        if excess < 0:
            low = place
        else:
            high = place
        density = math.exp(
            0.5 * degrees * math.log(half) - half - math.lgamma(0.5 * degrees)
        )
        step = excess / density if density else math.inf
        if abs(step) < _STEP:
            break
        place -= step
        if not low < place < high:
            place = 0.5 * (low + high)
    return math.exp(place)


def f_tail(value, first, second):
    """The probability that a ratio of F's distribution exceeds `value`.

    Args:
        value: the ratio of two variances.
        first, second: their degrees of freedom.
    """
    if value <= 0:
        return 1.0
    if math.isinf(value):
        return 0.0
    x = second / (second + first * value)
    return _incomplete_beta(0.5 * second, 0.5 * first, x)


def _lower_gamma(a, x):
    """The regularised lower incomplete gamma function."""
    if x <= 0:
        return 0.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while abs(term) > _CLOSE * total:
            n += 1
            term *= x / n
            total += term
        return front * total

    def step(k):
        return -k * (k - a), x + 2 * k + 1 - a

    return 1 - front / _fraction(x + 1 - a, step)


def _incomplete_beta(a, b, x):
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log1p(-x)
    )

    def step(k):
        half = k // 2
        if k % 2:
            top = -(a + half) * (a + b + half)
            return top * x / ((a + k - 1) * (a + k)), 1.0
        return half * (b - half) * x / ((a + k - 1) * (a + k)), 1.0

    return front / a / _fraction(1.0, step)


def _fraction(start, step):
    """b0 + a1/(b1 + a2/(b2 + …)), by Lentz's method; step(k) is (ak, bk)."""
    value = start or _SMALL
    above, below = value, 0.0
    for k in range(1, 10_000):
        a, b = step(k)
        below = 1 / ((b + a * below) or _SMALL)
        above = (b + a / above) or _SMALL
        change = above * below
        value *= change
        if abs(change - 1) < _CLOSE:
            break
    return value
