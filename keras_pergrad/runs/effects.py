"""Effects of groups: differences beyond those between the groups' own runs.

`distances` are squared distances between runs, relative to the gradient's norm
and averaged over the steps. Two groups are judged by the pairs that differ
only in the group: pairs of equal seeds if there are any, else all pairs. The
reference is the distance between repeats or, without repeats, between seeds.
"""

import dataclasses
import itertools
import math

import numpy as np

from keras_pergrad.common.optional import import_if_there
from keras_pergrad.runs.grouping import equality_matrix

REPEATS, SEEDS, RUNS = "repeats", "seeds", "runs"
_NUM_SHUFFLES = 1999
# With fewer ways to deal the runs, chance alone gives a p above 0.05.
_MIN_SPLITS = 40
_SIGNIFICANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Effect:
    """How two groups differ.

    Attributes:
        first, second: the groups' names.
        counts: how many runs each has.
        distance: between runs of the two groups, relative to the norm; NaN
            where no two share a step with finite gradients.
        reference: `"repeats"`, `"seeds"` or `"runs"` (seeds unknown): the
            pairs whose distance is `floor`; None if there is no such pair.
        floor: the distance inside the groups.
        ratio: `distance` over `floor`, the effect size; 1 is no effect.
        probability: of such a ratio if the groups were alike; None if
            undefined, or `untested`.
        untested: the test of so few runs needs SciPy, which is not installed.
        paired: whether runs of equal seeds were compared.
        confounded: no pair of runs of different groups has a reference, since
            the groups also differ in their seeds.
        confounders: what else all runs of the two groups differ in.
    """

    first: str
    second: str
    counts: tuple[int, int]
    distance: float = math.nan
    reference: str | None = None
    floor: float = math.nan
    ratio: float = math.nan
    probability: float | None = None
    untested: bool = False
    paired: bool = False
    confounded: bool = False
    confounders: list[str] = dataclasses.field(default_factory=list)

    @property
    def compared(self) -> bool:
        """Whether runs that share a step distinguish an effect from chance."""
        if math.isnan(self.distance) or self.reference is None:
            return not math.isnan(self.distance)
        is_tested = self.probability is not None
        return self.floor == 0 or is_tested or self.untested

    @property
    def real(self) -> bool:
        """Whether the groups differ beyond the reference."""
        if self.reference is None or self.confounded or not self.ratio > 1:
            return False
        if self.probability is None:
            return math.isinf(self.ratio)
        return self.probability < _SIGNIFICANCE


def compute_effects(distances, grouping, by):
    """Return an `Effect` for each pair of groups, the largest ratio first."""
    names = sorted(set(grouping.groups))
    groups = np.array([names.index(g) for g in grouping.groups])
    results = []
    for a, b in itertools.combinations(range(len(names)), 2):
        first, second = np.flatnonzero(groups == a), np.flatnonzero(groups == b)
        members = np.sort(np.concatenate([first, second]))
        members = members[
            _has_distance(distances[np.ix_(members, members)]).any(1)
        ]
        pairs = np.ix_(members, members)
        statistics = _pair_statistics(
            distances[pairs],
            groups[members] == b,
            grouping.seeds[members],
            repeats=grouping.repeats[pairs],
            known_seeds=grouping.has_seed[members].all(),
            # A seed cannot be on both sides of groups made of seeds.
            by_seed=by == "seed",
        )
        differing = grouping.always_differ(first, second)
        results.append(
            Effect(
                names[a],
                names[b],
                (len(first), len(second)),
                confounders=[name for name in differing if name != by],
                **statistics,
            )
        )
    return sorted(
        results, key=lambda e: -e.ratio if e.ratio == e.ratio else math.inf
    )


def _has_distance(distances):
    """Return whether two runs have a distance, (R, R)."""
    return ~np.isnan(distances) & ~np.eye(len(distances), dtype=bool)


def _pair_statistics(distances, side, seeds, *, repeats, known_seeds, by_seed):
    """Return the fields of an `Effect` other than its groups."""
    has_distance = _has_distance(distances)
    same_seed, cross, within = equality_matrix(seeds), *_pair_masks(side)
    if not (cross & has_distance).any():
        return {}
    paired = bool((cross & same_seed & has_distance).any())
    has_repeats = bool((repeats & has_distance).any())
    has_seed_pairs = bool((within & ~same_seed & has_distance).any())
    distance = _rms(distances, cross & same_seed if paired else cross)
    confounded, strata = False, seeds * 0 if by_seed else seeds
    # The test deals the runs of a stratum anew: those of a seed, or all.
    if by_seed or (paired and has_repeats):
        floor = _rms(distances, repeats)
        reference = REPEATS if has_repeats else None
    else:
        floor = _rms(distances, within & ~same_seed)
        # Repeats say nothing about the distance of two seeds. Without pairing,
        # only what exceeds the noise of the seeds shows.
        distances, side = _average_repeats(distances, side, seeds)
        strata = np.zeros(len(side), int)
        reference = (SEEDS if known_seeds else RUNS) if has_seed_pairs else None
        if not paired:
            cross, within = _pair_masks(side)
            distance, floor = _rms(distances, cross), _rms(distances, within)
            confounded = not has_seed_pairs
    ratio = _ratio(distance, floor)
    is_testable = reference and np.isfinite(ratio)
    probability = _p_value(distances, side, strata) if is_testable else None
    has_scipy = import_if_there("scipy.special") is not None
    return {
        "distance": distance,
        "reference": reference,
        "floor": floor,
        "ratio": ratio,
        "probability": probability,
        "untested": bool(is_testable and probability is None and not has_scipy),
        "paired": paired,
        "confounded": confounded,
    }


def _pair_masks(side):
    """Return the pairs across the groups and those inside one, (R, R) each."""
    cross = ~equality_matrix(side)
    return cross, ~cross & ~np.eye(len(side), dtype=bool)


def _rms(distances, pairs):
    return math.sqrt(_mean(distances[pairs]))


def _mean(values):
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else math.nan


def _ratio(distance, floor):
    if floor == 0:
        return 1.0 if distance == 0 else math.inf
    return distance / floor


def _average_repeats(distances, side, seeds):
    """Average over the repeats of a seed: one row for each seed and side."""
    keys = np.unique(np.stack([side, seeds], 1), axis=0)
    members = [(side == k[0]) & (seeds == k[1]) for k in keys]
    averages = np.array(
        [[_mean(distances[np.ix_(a, b)]) for b in members] for a in members]
    )
    return averages, keys[:, 0].astype(bool)


def _p_value(distances, side, strata):
    """Return how likely such a large ratio is if the groups are alike."""
    # The runs are dealt into the groups anew, seed by seed where seeds are in
    # both. With few runs the distribution of F is used, as if all differences
    # lay in one direction: the result is too large rather than too small.
    same_stratum = equality_matrix(strata)
    if np.isnan(distances[same_stratum]).any():
        return None
    num_splits = 1
    for s in np.unique(strata):
        stratum = side[strata == s]
        num_splits *= math.comb(len(stratum), int(stratum.sum()))
    if num_splits < 2 * _MIN_SPLITS:
        return _f_test(distances, side, strata)
    shuffled = np.repeat(side[None].astype(float), _NUM_SHUFFLES, axis=0)
    random = np.random.default_rng(0)
    for s in np.unique(strata):
        stratum = strata == s
        shuffled[:, stratum] = random.permuted(shuffled[:, stratum], axis=1)
    # The sum over all pairs is the same for each deal, and so is the number of
    # pairs across the groups: the sum over these alone orders the ratios.
    stratum_distances = np.where(same_stratum, distances, 0.0)
    across = ((shuffled @ stratum_distances) * (1 - shuffled)).sum(1)
    observed = (side @ stratum_distances * ~side).sum()
    at_least = (across >= observed * (1 - 1e-12)).sum()
    return float(1 + at_least) / (_NUM_SHUFFLES + 1)


def _f_test(distances, side, strata):
    between = within = 0.0
    groups = freedom = 0
    for s in np.unique(strata):
        a = np.flatnonzero((strata == s) & ~side)
        b = np.flatnonzero((strata == s) & side)
        spread = 0.0
        for group in filter(len, (a, b)):
            # Over the group's size, this is its sum of squares; over the square
            # of the size, its part in the mean squared distance across.
            group_sum = distances[np.ix_(group, group)].sum() / 2
            spread += group_sum / len(group) ** 2
            within += group_sum / len(group)
            freedom += len(group) - 1
        if len(a) and len(b):
            mean_gap = distances[np.ix_(a, b)].mean() - spread
            between += mean_gap * len(a) * len(b) / (len(a) + len(b))
            groups += 1
    if not freedom or not groups or not within:
        return None
    value = (between / groups) / (within / freedom)
    special = import_if_there("scipy.special")
    return special and float(special.fdtrc(groups, freedom, value))
