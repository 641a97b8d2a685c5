"""Each seed counts once: its repeats are no further draws.

R runs, U units, T steps. A unit is the runs of one seed; where all runs
compared are of one seed, each run is a unit of its own.
"""

import numpy as np


def units(kinship):
    """A number for each run, (R,), equal for those that count as one."""
    if kinship.independent.any():
        return kinship.seeds
    return np.arange(len(kinship.seeds))


def members(units):
    """(U, R): row u averages the runs of unit u."""
    found = (units[None, :] == np.unique(units)[:, None]).astype(float)
    return found / found.sum(1, keepdims=True)


def pairs(members):
    """Weights (R, R) of a mean in which each two units count once.

    All zero where there are no two units.
    """
    between = 1 - np.eye(len(members))
    return members.T @ (between / max(between.sum(), 1)) @ members


def average(values, units):
    """The mean over the units of a scalar (T, R); NaN does not count."""
    start, centred = _centred(values)
    return start + _mean(_of_units(centred, units))


def deviation(values, units):
    """The standard deviation of a scalar (T, R) between units, (T,).

    From ½ the mean squared difference of two units' runs, as the variance
    of the gradient; without repeats that is the sample variance. NaN where
    fewer than two units have a value.
    """
    _, centred = _centred(values)
    means = _of_units(centred, units)
    squares = _of_units(centred**2, units)
    count = (~np.isnan(means)).sum(1)
    crossed = np.nansum(means, 1) ** 2 - np.nansum(means**2, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (np.nansum(squares, 1) - crossed / (count - 1)) / count
    return np.where(count > 1, np.sqrt(np.maximum(variance, 0)), np.nan)


def _centred(values):
    """Each step's first value, and all values less that.

    Equal values become zeros, without rounding, and stay so.
    """
    first = np.argmax(~np.isnan(values), axis=1)
    start = values[np.arange(len(values)), first]
    return start, values - start[:, None]


def _of_units(values, units):
    """The mean over each unit's runs, (T, U); NaN of none."""
    return np.stack(
        [_mean(values[:, units == unit]) for unit in np.unique(units)], 1
    )


def _mean(values):
    there = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(there, values, 0).sum(1) / there.sum(1)
