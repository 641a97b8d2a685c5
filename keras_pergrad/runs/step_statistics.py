"""Statistics of the runs' gradients, step by step.

R runs, T steps, S numbers a sketch, U units: a unit is all runs of one seed,
or a single run if all have the same seed. Each unit counts once, however often
it was repeated. x is a sketch, d² a squared distance. The variance between
runs is the trace of their covariance: ½ the mean d² of two units' runs, which
for runs of different seeds is Σ‖xᵢ − x̄‖²/(R − 1).

To add a figure, add an entry to `MEANINGS`; compute it in
`_block_figures` from sketches or in `compute_figures` from the other figures.
"""

import numpy as np

from keras_pergrad.common.optional import import_if_there
from keras_pergrad.runs.alignment import steps_by_runs
from keras_pergrad.runs.figures import NORM, VARIANCE
from keras_pergrad.runs.grouping import equality_codes, equality_matrix

_NUMBERS_AT_ONCE = 2**22

MEANINGS = {
    "step": "The number of the optimizer's updates before the measurement.",
    "runs": "How many runs have a record of the step.",
    "loss": "Mean loss of the probe batch.",
    "norm": "Mean norm of the gradient.",
    "norm_sd": "Its standard deviation between runs of different seeds.",
    "distance": "Root mean square distance between the gradients of two runs "
    "of different seeds, over the gradient's norm.",
    "repeat_distance": "The same for runs of one seed on the same device and "
    "machine with the same settings: nondeterminism, the noise floor.",
    "sampling_distance": "The same for two batches of the probe's size at "
    "equal weights.",
    "variance": "Trace of the covariance of the gradient between runs of "
    "different seeds; where all runs are of one seed, between these.",
    "variance_low": "Lower end of its 95 % interval, for normally distributed "
    "differences.",
    "variance_high": "Upper end of its 95 % interval.",
    "repeat_variance": "The variance between the repeats of a seed.",
    "sampling_variance": "Variance of one batch's gradient at equal weights: "
    "trace of the per-sample covariance over the size of the probe.",
    "sampling_ratio": "That over the variance between runs. The probe is the "
    "same in every run, and sampling enters by the path of the weights: this "
    "is a reference and not a cause. Near 1, runs differ no more than batches "
    "do; near 0, their weights have gone to other places.",
    "sampling_share": "The same, at most 1.",
    "cosine": "Mean cosine over pairs of runs of different seeds.",
    "cosine_min": "The least of these.",
}


def compute_figures(aligned, grouping):
    """Compute every figure, (T,), and each two runs' mean d² over the norm²."""
    figures, distances = _sketch_figures(aligned, grouping)
    scale = figures.pop("scale")
    units = grouping.units
    loss, norm, variance = (
        _nonfinite_to_nan(aligned.scalars(name))
        for name in ("loss", NORM.name, VARIANCE.name)
    )
    sampling = unit_average(variance, units) / aligned.infos[0]["probe_samples"]
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = sampling / figures["variance"]
        ratio = np.where(figures["variance"] > 0, ratio, np.nan)
        # Two draws of variance v have the distance √(2v).
        for name, variance in (
            ("distance", figures["variance"]),
            ("repeat_distance", figures["repeat_variance"]),
            ("sampling_distance", sampling),
        ):
            figures[name] = np.sqrt(2 * np.maximum(variance, 0) / scale)
    figures |= {
        "step": aligned.steps,
        "runs": (aligned.rows >= 0).sum(1),
        "loss": unit_average(loss, units),
        "norm": unit_average(norm, units),
        "norm_sd": unit_deviation(norm, units),
        "sampling_variance": sampling,
        "sampling_ratio": ratio,
        "sampling_share": np.minimum(ratio, 1.0),
    }
    return {name: figures[name] for name in MEANINGS}, distances


def _nonfinite_to_nan(values):
    return np.where(np.isfinite(values), values, np.nan)


def _sketch_figures(aligned, grouping):
    """Go through the sketches, a few steps at a time."""
    steps, count = aligned.rows.shape
    figures = {name: np.full(steps, np.nan) for name in (*MEANINGS, "scale")}
    total, pair_counts = np.zeros((count, count)), np.zeros((count, count))
    for step_indices, present, sketches in _blocks(aligned):
        pair_indices = np.ix_(present, present)
        members = averaging_matrix(grouping.units[present])
        distances = _distances(sketches)
        block = _block_figures(
            sketches, distances, members, repeats=grouping.repeats[pair_indices]
        )
        for name, values in block.items():
            figures[name][step_indices] = values
        scale = block["scale"]
        defined = scale > 0
        total[pair_indices] += (
            distances[defined] / scale[defined, None, None]
        ).sum(0)
        pair_counts[pair_indices] += defined.sum()
    with np.errstate(invalid="ignore"):
        return figures, np.where(pair_counts > 0, total / pair_counts, np.nan)


def _block_figures(sketches, distances, members, *, repeats):
    """Compute the figures of steps from sketches (T, R, S) and d² (T, R, R)."""
    squared_norms = np.einsum("trs,trs->tr", sketches, sketches)
    figures = {"scale": squared_norms @ members.mean(0)}
    if repeats.any():
        figures["repeat_variance"] = 0.5 * distances[:, repeats].mean(1)
    if len(members) > 1:
        weights = pair_weights(members)
        variance = 0.5 * np.einsum("tij,ij->t", distances, weights)
        low, high = _variance_interval(
            variance, distances, members, size=sketches.shape[2]
        )
        mean, least = _cosines(squared_norms, distances, weights)
        figures |= {
            "variance": variance,
            "variance_low": low,
            "variance_high": high,
            "cosine": mean,
            "cosine_min": least,
        }
    return figures


def _blocks(aligned):
    """Yield steps that the same runs have: (indices, runs, sketches)."""
    size = aligned.infos[0]["sketch_size"]
    finite = np.isfinite(aligned.scalars(NORM.name))
    for step_indices, present in steps_by_runs((aligned.rows >= 0) & finite):
        if len(present) < 2:
            continue
        block_steps = max(1, _NUMBERS_AT_ONCE // (len(present) * size))
        for start in range(0, len(step_indices), block_steps):
            block = step_indices[start : start + block_steps]
            sketches = np.empty((len(block), len(present), size))
            for j, r in enumerate(present):
                rows = aligned.rows[block, r]
                sketches[:, j] = aligned.runs[r].read("sketches", rows)
            yield block, present, sketches


def _distances(sketches):
    """Return d² of each two runs, (T, R, R); exactly 0 where they are equal."""
    # Products of the sketches themselves would lose the difference of nearly
    # equal runs.
    centred = sketches - sketches.mean(1, keepdims=True)
    # One by one: NumPy recognises a product with its own transpose, and takes
    # a fifth of the time.
    products = np.stack([matrix @ matrix.T for matrix in centred])
    square = np.einsum("tii->ti", products)
    square_sums = square[:, :, None] + square[:, None, :]
    distances = np.maximum(square_sums - 2 * products, 0)
    # Bitwise equal runs have distance 0, whatever rounding gives above.
    for step, values in zip(distances, sketches):
        step[equality_matrix(equality_codes(v.tobytes() for v in values))] = 0
    return distances


def _cosines(squared_norms, distances, weights):
    """Return the weighted mean and least cosine of the pairs, each (T,)."""
    first, second = np.nonzero(np.triu(weights, 1))
    a, b = squared_norms[:, first], squared_norms[:, second]
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = (a + b - distances[:, first, second]) / (2 * np.sqrt(a * b))
        # A gradient of zero has no direction: NaN.
        mean = cosine @ (2 * weights[first, second])
    return mean, cosine.min(1)


def _variance_interval(variance, distances, members, *, size):
    """Return a 95 % interval for the variance, by Satterthwaite."""
    # The trace is a sum of chi-squares, one for each direction in which runs
    # differ. How many matter, (Σλ)²/Σλ², is estimated from the sample and at
    # most the number of runs less one: the interval is too wide rather than
    # too narrow. The sketch adds its own 2/(S·directions).
    special = import_if_there("scipy.special")
    if special is None:
        return np.full((2, len(variance)), np.nan)
    count = len(members)
    max_directions = count - 1
    if count < members.shape[1]:
        distances = members @ distances @ members.T
    # Products of the centred means from their distances (Gower).
    products = -0.5 * distances
    products = products - products.mean(1, keepdims=True)
    products -= products.mean(2, keepdims=True)
    trace = np.einsum("tii->t", products)
    square = np.einsum("tij,tij->t", products, products)
    is_defined = (variance > 0) & (square > 0)
    directions = np.ones_like(variance)
    np.divide(trace**2, square, out=directions, where=is_defined)
    directions = np.clip(directions, 1.0, max_directions)
    degrees = directions * max_directions * size / (max_directions + size)
    scale = np.where(is_defined, degrees * variance, 0.0)
    return [scale / special.chdtri(degrees, tail) for tail in (0.025, 0.975)]


def averaging_matrix(units):
    """Return a matrix (U, R): row u averages the runs of unit u."""
    members = (units[None, :] == np.unique(units)[:, None]).astype(float)
    return members / members.sum(1, keepdims=True)


def pair_weights(members):
    """Return weights (R, R) of a mean in which each two units count once."""
    between = 1 - np.eye(len(members))
    return members.T @ (between / max(between.sum(), 1)) @ members


def unit_average(values, units):
    """Return the mean over the units of a scalar (T, R), without NaN."""
    start, centred = _center(values)
    return start + _mean(unit_means(centred, units))


def unit_deviation(values, units):
    """Return the standard deviation of a scalar (T, R) between units, (T,)."""
    # Its square is ½ the mean squared difference of two units' runs, as for
    # the variance of the gradient.
    _, centred = _center(values)
    means = unit_means(centred, units)
    squares = unit_means(centred**2, units)
    count = (~np.isnan(means)).sum(1)
    cross_products = np.nansum(means, 1) ** 2 - np.nansum(means**2, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (
            np.nansum(squares, 1) - cross_products / (count - 1)
        ) / count
    return np.where(count > 1, np.sqrt(np.maximum(variance, 0)), np.nan)


def _center(values):
    """Return each step's first value, and all values minus it, 0 if equal."""
    first = np.argmax(~np.isnan(values), axis=1)[:, None]
    start = np.take_along_axis(values, first, 1)
    return start[:, 0], values - start


def unit_means(values, units):
    """Return the mean over each unit's runs, (T, U); NaN of none."""
    return np.stack(
        [_mean(values[:, units == unit]) for unit in np.unique(units)], 1
    )


def _mean(values):
    is_defined = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(is_defined, values, 0).sum(1) / is_defined.sum(1)
