"""How far apart the runs' gradients are, step by step.

R runs, T steps, S numbers a sketch; x is a sketch, d² a squared distance. The
variance between runs is the trace of their covariance: ½ the mean d² of two
independent runs, which for runs of different seeds is Σ‖xᵢ − x̄‖²/(R − 1).
Repeats of one seed do not make it smaller: each two *seeds* count once.
"""

import dataclasses

import numpy as np

from keras_pergrad.runs import weighting
from keras_pergrad.runs.distributions import chi_square_quantile

_NUMBERS_AT_ONCE = 2**22


@dataclasses.dataclass
class Spread:
    """What the sketches say; all arrays of length T but for `apart`.

    Attributes:
        variance: trace of the covariance between independent runs; where
            all runs compared are of one seed, between these. NaN at a step
            that only runs of one seed have, when there are others.
        variance_low, variance_high: its 95 % confidence interval.
        repeat_variance: the same between repeats of a seed.
        cosine, cosine_min: mean and least over the same pairs of runs as
            the variance.
        scale: mean squared norm of the gradient, each seed counted once.
        apart: mean d² over the steps that two runs share, each over
            `scale`, (R, R); NaN where they share none.
    """

    variance: np.ndarray
    variance_low: np.ndarray
    variance_high: np.ndarray
    repeat_variance: np.ndarray
    cosine: np.ndarray
    cosine_min: np.ndarray
    scale: np.ndarray
    apart: np.ndarray


def measure(aligned, kinship):
    """Goes through the sketches, a few steps at a time; a `Spread`."""
    steps, count = aligned.rows.shape
    columns = {
        field.name: np.full(steps, np.nan)
        for field in dataclasses.fields(Spread)
        if field.name != "apart"
    }
    total, shared = np.zeros((count, count)), np.zeros((count, count))
    units = weighting.units(kinship)
    for where, present, sketches in _blocks(aligned):
        square = np.einsum("trs,trs->tr", sketches, sketches)
        apart = _distances(sketches)
        both = np.ix_(present, present)
        members = weighting.members(units[present])
        scale = square @ members.mean(0)
        columns["scale"][where] = scale
        if len(members) > 1:
            weights = weighting.pairs(members)
            cosine = _cosines(square, apart, weights)
            columns["cosine"][where], columns["cosine_min"][where] = cosine
            variance = 0.5 * np.einsum("tij,ij->t", apart, weights)
            columns["variance"][where] = variance
            low, high = _interval(variance, apart, members, sketches.shape[2])
            columns["variance_low"][where] = low
            columns["variance_high"][where] = high
        repeats = kinship.repeats[both]
        if repeats.any():
            columns["repeat_variance"][where] = 0.5 * apart[:, repeats].mean(1)
        defined = scale > 0
        total[both] += (apart[defined] / scale[defined, None, None]).sum(0)
        shared[both] += defined.sum()
    with np.errstate(invalid="ignore"):
        apart = np.where(shared > 0, total / shared, np.nan)
    return Spread(apart=apart, **columns)


def _blocks(aligned):
    """Steps that the same runs have: (their indices, the runs, sketches)."""
    size = aligned.runs[0].sketches.shape[1]
    finite = np.isfinite(aligned.scalars("gradient_norm"))
    there = (aligned.rows >= 0) & finite
    patterns, which = np.unique(there, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        present = np.flatnonzero(pattern)
        if len(present) < 2:
            continue
        where = np.flatnonzero(which.reshape(-1) == k)
        at_once = max(1, _NUMBERS_AT_ONCE // (len(present) * size))
        for start in range(0, len(where), at_once):
            block = where[start : start + at_once]
            out = np.empty((len(block), len(present), size))
            for j, r in enumerate(present):
                rows = aligned.rows[block, r]
                out[:, j] = aligned.runs[r].read(rows)["sketch"]
            yield block, present, out


def _distances(sketches):
    """d² of each two runs, (T, R, R); exactly 0 where they are equal.

    From the products of what differs from the mean: products of the
    sketches themselves would lose the difference of nearly equal runs.
    """
    centred = sketches - sketches.mean(1, keepdims=True)
    # One by one: NumPy knows a product with its own transpose, and takes
    # a fifth of the time.
    products = np.stack([one @ one.T for one in centred])
    square = np.einsum("tii->ti", products)
    apart = np.maximum(
        square[:, :, None] + square[:, None, :] - 2 * products, 0
    )
    # Bitwise equal runs: rounding in the products is no distance.
    for step, values in zip(apart, sketches):
        seen = {}
        same = [seen.setdefault(v.tobytes(), len(seen)) for v in values]
        same = np.array(same)
        step[same[:, None] == same[None, :]] = 0
    return apart


def _cosines(square, apart, weights):
    """Weighted mean and least cosine over the pairs, each (T,)."""
    first, second = np.nonzero(np.triu(weights, 1))
    a, b = square[:, first], square[:, second]
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = (a + b - apart[:, first, second]) / (2 * np.sqrt(a * b))
        # A gradient of zero has no direction: NaN.
        mean = cosine @ (2 * weights[first, second])
    return mean, cosine.min(1)


def _interval(variance, apart, members, size):
    """A 95 % interval for the variance, by Satterthwaite's chi-square.

    A trace is a sum of chi-squares, one a direction in which runs differ.
    How many directions matter, (Σλ)²/Σλ², is estimated by what the sample
    shows: never more than there are runs less one, so that the interval is
    too wide rather than too narrow. The sketch adds its own 2/(S·directions).
    """
    count = len(members)
    freedom = count - 1
    if count < members.shape[1]:
        apart = members @ apart @ members.T
    # Products of the centred means from their distances (Gower).
    products = -0.5 * apart
    products = products - products.mean(1, keepdims=True)
    products -= products.mean(2, keepdims=True)
    trace = np.einsum("tii->t", products)
    square = np.einsum("tij,tij->t", products, products)
    low, high = np.zeros_like(variance), np.zeros_like(variance)
    for t in np.flatnonzero((variance > 0) & (square > 0)):
        directions = min(max(trace[t] ** 2 / square[t], 1.0), freedom)
        degrees = directions * freedom * size / (freedom + size)
        scale = degrees * variance[t]
        low[t] = scale / chi_square_quantile(0.975, degrees)
        high[t] = scale / chi_square_quantile(0.025, degrees)
    return low, high
