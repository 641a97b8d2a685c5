"""The gradient noise scale of runs, smoothed over their readings.

McCandlish et al. 2018 (arXiv 1812.06162), appendix A: a reading of n samples
estimates tr Σ and ‖G‖² = ‖ḡ‖² − tr Σ / n without bias, but not their ratio. So
the two are averaged first, over readings and seeds, and divided then.
"""

import dataclasses
import math

import numpy as np

from keras_pergrad.common.optional import import_if_there
from keras_pergrad.runs.figures import NORM, VARIANCE
from keras_pergrad.runs.step_statistics import unit_means

SEEDS, BLOCKS = "seeds", "blocks"
_MAX_BLOCKS = 10
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale of a group of runs, in samples.

    About the batch size above which more samples hardly help. It is the mean of
    tr Σ over the mean of ‖ḡ‖² − tr Σ / n, each over all readings of the group;
    the repeats of a seed count as one run. NaN: not defined.

    The interval is a 95 % jackknife of the inverse, with Student's
    distribution: it leaves out one seed after the other. With a single seed it
    leaves out one of up to ten blocks of consecutive readings. These are not
    independent, so it is then too narrow where the noise scale hardly changes.
    In both cases it is for this probe; other samples would move it further.

    Attributes:
        group: the group's name; None: all runs.
        seeds: how many seeds the group has; an unknown one counts as a seed.
        readings: how many readings of its runs were averaged.
        value: the noise scale; NaN where the mean of ‖ḡ‖² − tr Σ / n is not
            positive: the mean gradient is not distinguishable from noise.
        low, high: the interval. `high` is infinite where a mean gradient of
            zero is in it; both are NaN without SciPy, and of one reading.
        left_out: what the jackknife leaves out, "seeds" or "blocks".
        first_half, second_half: the noise scale in the two halves of the
            compared steps.

    Example:

    >>> import keras_pergrad as kpg
    >>> scale = kpg.diagnose.NoiseScale(
    ...     group=None,
    ...     seeds=5,
    ...     readings=100,
    ...     value=310.0,
    ...     low=220.0,
    ...     high=480.0,
    ...     left_out="seeds",
    ...     first_half=90.0,
    ...     second_half=700.0,
    ... )
    >>> f"{scale.value:.0f} samples, {scale.low:.0f} to {scale.high:.0f}"
    '310 samples, 220 to 480'
    """

    group: str | None
    seeds: int
    readings: int
    value: float
    low: float
    high: float
    left_out: str
    first_half: float
    second_half: float


def compute_noise_scales(aligned, grouping):
    """Return a `NoiseScale` of each group whose samples' variance is known."""
    traces = aligned.scalars(VARIANCE.name)
    with np.errstate(over="ignore", invalid="ignore"):
        squared_norms = (
            aligned.scalars(NORM.name) ** 2
            - traces / aligned.infos[0]["probe_samples"]
        )
    is_known = np.isfinite(traces) & np.isfinite(squared_norms)
    sums = np.stack([traces, squared_norms])
    sums[:, ~is_known] = np.nan
    labels = grouping.groups or [None] * len(grouping.seeds)
    groups = {
        name: np.array([label == name for label in labels])
        for name in dict.fromkeys(labels)
    }
    return [
        _noise_scale(name, sums[:, :, members], grouping.seeds[members])
        for name, members in groups.items()
        if is_known[:, members].any()
    ]


def _noise_scale(group, readings, seeds):
    """Return the `NoiseScale` of tr Σ and ‖G‖², (2, T, R), of R runs."""
    by_seed = np.stack([unit_means(one, seeds) for one in readings])
    is_known = ~np.isnan(by_seed[0])
    by_seed = np.where(is_known, by_seed, 0.0)[:, is_known.any(1)]
    count = int(is_known.any(0).sum())
    parts, left_out = by_seed.sum(1)[:, is_known.any(0)], SEEDS
    if count == 1:
        blocks = np.array_split(
            by_seed.sum(2), min(_MAX_BLOCKS, by_seed.shape[1]), axis=1
        )
        parts = np.stack([block.sum(1) for block in blocks], axis=1)
        left_out = BLOCKS
    low, high = jackknife_interval(*parts)
    halves = np.array_split(by_seed.sum(2), 2, axis=1)
    first, second = (_ratio(*half.sum(1)) for half in halves)
    return NoiseScale(
        group=group,
        seeds=count,
        readings=int((~np.isnan(readings[0])).sum()),
        value=_ratio(*parts.sum(1)),
        low=low,
        high=high,
        left_out=left_out,
        first_half=first,
        second_half=second,
    )


def jackknife_interval(traces, squared_norms):
    """Return the interval of Σ traces / Σ squared norms; (P,) each, P parts."""
    # The inverse: its denominator, tr Σ, is well known, while ‖G‖² may come
    # near zero, where the noise scale has no bound.
    special = import_if_there("scipy.special")
    count = len(traces)
    if special is None or count < 2 or not traces.sum() > 0:
        return math.nan, math.nan
    inverse = squared_norms.sum() / traces.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        others = (squared_norms.sum() - squared_norms) / (traces.sum() - traces)
    variance = (count - 1) * others.var()
    quantile = special.stdtrit(count - 1, (1 + _CONFIDENCE) / 2)
    error = float(quantile * np.sqrt(variance))
    return _inverse(inverse + error), _inverse(inverse - error)


def _inverse(value):
    if math.isnan(value):
        return value
    return float(1 / value) if value > 0 else math.inf


def _ratio(trace, squared_norm):
    return float(trace / squared_norm) if squared_norm > 0 else math.nan
