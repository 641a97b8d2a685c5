"""Effects of groups: differences beyond those between the groups' own runs.

`apart` holds squared distances between runs, relative to the gradient's norm
and averaged over the steps. Two groups are judged by the pairs that differ
only in the group: pairs of equal seeds if there are any, else all pairs. The
yardstick is the distance between repeats or, without repeats, between seeds.
"""

import dataclasses
import itertools
import math

import numpy as np

from keras_pergrad.runs import page
from keras_pergrad.runs.grouping import equal

REPEATS, SEEDS, RUNS = "repeats", "seeds", "runs"
_SHUFFLES = 1999
# With fewer ways to deal the runs, chance alone gives a p above 0.05.
_ENOUGH_WAYS = 40
_LEVEL = 0.05


@dataclasses.dataclass(frozen=True)
class Effect:
    """How two groups differ.

    Attributes:
        first, second: the groups' names.
        counts: how many runs each has.
        distance: between runs of the two groups, relative to the norm; NaN
            where no two share a step with finite gradients.
        yardstick: `"repeats"`, `"seeds"` or `"runs"` (seeds unknown): the
            pairs whose distance is `floor`; None if there is no such pair.
        floor: the distance inside the groups.
        ratio: `distance` over `floor`, the effect size; 1 is no effect.
        probability: of such a ratio if the groups were alike; None if
            undefined.
        paired: whether runs of equal seeds were compared.
        confounded: no pair of runs of different groups has a yardstick, since
            the groups also differ in their seeds.
        besides: what else all runs of the two groups differ in.
    """

    first: str
    second: str
    counts: tuple[int, int]
    distance: float = math.nan
    yardstick: str | None = None
    floor: float = math.nan
    ratio: float = math.nan
    probability: float | None = None
    paired: bool = False
    confounded: bool = False
    besides: list[str] = dataclasses.field(default_factory=list)

    @property
    def compared(self):
        """Whether the runs that share a step tell chance from an effect."""
        if math.isnan(self.distance) or self.yardstick is None:
            return not math.isnan(self.distance)
        return self.floor == 0 or self.probability is not None

    @property
    def real(self):
        """Whether the groups differ beyond the yardstick."""
        if self.yardstick is None or self.confounded or not self.ratio > 1:
            return False
        if self.probability is None:
            return math.isinf(self.ratio)
        return self.probability < _LEVEL


def effects(apart, grouping, by):
    """Return an `Effect` for each pair of groups, the largest ratio first."""
    names = sorted(set(grouping.groups))
    groups = np.array([names.index(g) for g in grouping.groups])
    judged = []
    for a, b in itertools.combinations(range(len(names)), 2):
        first, second = np.flatnonzero(groups == a), np.flatnonzero(groups == b)
        both = np.sort(np.concatenate([first, second]))
        both = both[_measured(apart[np.ix_(both, both)]).any(1)]
        pairs = np.ix_(both, both)
        besides = grouping.always_differ(first, second)
        of_pairs = _judged(
            apart[pairs],
            groups[both] == b,
            grouping.seeds[both],
            grouping.repeats[pairs],
            grouping.known[both].all(),
            # A seed cannot be on both sides of groups made of seeds.
            by == "seed",
        )
        counts = len(first), len(second)
        besides = [name for name in besides if name != by]
        who = names[a], names[b], counts
        judged.append(Effect(*who, besides=besides, **of_pairs))
    return sorted(
        judged, key=lambda e: -e.ratio if e.ratio == e.ratio else math.inf
    )


def _measured(apart):
    """Return whether two runs have a distance, (R, R)."""
    return ~np.isnan(apart) & ~np.eye(len(apart), dtype=bool)


def _judged(apart, side, seeds, repeats, known, by_seed):
    """Return what an `Effect` says besides its groups."""
    measured = _measured(apart)
    same_seed, cross, within = equal(seeds), *_sides(side)
    if not (cross & measured).any():
        return {}
    paired = bool((cross & same_seed & measured).any())
    repeated = bool((repeats & measured).any())
    several = bool((within & ~same_seed & measured).any())
    distance = _rms(apart, cross & same_seed if paired else cross)
    confounded, strata = False, seeds * 0 if by_seed else seeds
    if by_seed or (paired and repeated):
        floor = _rms(apart, repeats)
        yardstick = REPEATS if repeated else None
    else:
        floor = _rms(apart, within & ~same_seed)
        # Repeats say nothing about the distance of two seeds. Without pairing,
        # only what exceeds the noise of the seeds shows.
        apart, side = _by_seed(apart, side, seeds)
        strata = np.zeros(len(side), int)
        yardstick = (SEEDS if known else RUNS) if several else None
        if not paired:
            cross, within = _sides(side)
            distance, floor = _rms(apart, cross), _rms(apart, within)
            confounded = not several
    ratio = _ratio(distance, floor)
    judged = yardstick and np.isfinite(ratio)
    return {
        "distance": distance,
        "yardstick": yardstick,
        "floor": floor,
        "ratio": ratio,
        "probability": _probability(apart, side, strata) if judged else None,
        "paired": paired,
        "confounded": confounded,
    }


def _sides(side):
    """Return the pairs across the groups and those inside one, (R, R) each."""
    cross = ~equal(side)
    return cross, ~cross & ~np.eye(len(side), dtype=bool)


def _rms(apart, pairs):
    return math.sqrt(_mean(apart[pairs]))


def _mean(values):
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else math.nan


def _ratio(distance, floor):
    if floor == 0:
        return 1.0 if distance == 0 else math.inf
    return distance / floor


def _by_seed(apart, side, seeds):
    """Average over the repeats of a seed: one row for each seed and side."""
    keys = np.unique(np.stack([side, seeds], 1), axis=0)
    members = [(side == k[0]) & (seeds == k[1]) for k in keys]
    out = np.array(
        [[_mean(apart[np.ix_(a, b)]) for b in members] for a in members]
    )
    return out, keys[:, 0].astype(bool)


def _probability(apart, side, strata):
    """Return how likely such a large ratio is if the groups are alike."""
    # The runs are dealt into the groups anew, seed by seed where seeds are in
    # both. With few runs the distribution of F is used, as if all differences
    # lay in one direction: the result is too large rather than too small.
    inside = equal(strata)
    if np.isnan(apart[inside]).any():
        return None
    ways = 1
    for s in np.unique(strata):
        mine = side[strata == s]
        ways *= math.comb(len(mine), int(mine.sum()))
    if ways < 2 * _ENOUGH_WAYS:
        return _by_f(apart, side, strata)
    dealt = np.repeat(side[None].astype(float), _SHUFFLES, axis=0)
    random = np.random.default_rng(0)
    for s in np.unique(strata):
        mine = strata == s
        dealt[:, mine] = random.permuted(dealt[:, mine], axis=1)
    # The sum over all pairs is the same for each deal, and so is the number of
    # pairs across the groups: the sum over these alone orders the ratios.
    inner = np.where(inside, apart, 0.0)
    across = ((dealt @ inner) * (1 - dealt)).sum(1)
    observed = (side @ inner * ~side).sum()
    at_least = (across >= observed * (1 - 1e-12)).sum()
    return float(1 + at_least) / (_SHUFFLES + 1)


def _by_f(apart, side, strata):
    between = inner = 0.0
    groups = freedom = 0
    for s in np.unique(strata):
        a = np.flatnonzero((strata == s) & ~side)
        b = np.flatnonzero((strata == s) & side)
        inside = 0.0
        for part in filter(len, (a, b)):
            total = apart[np.ix_(part, part)].sum() / 2
            inside += total / len(part) ** 2
            inner += total / len(part)
            freedom += len(part) - 1
        if len(a) and len(b):
            means = apart[np.ix_(a, b)].mean() - inside
            between += means * len(a) * len(b) / (len(a) + len(b))
            groups += 1
    if not freedom or not groups or not inner:
        return None
    value = (between / groups) / (inner / freedom)
    return float(
        page.load("scipy.special", "Comparing runs").fdtrc(
            groups, freedom, value
        )
    )
