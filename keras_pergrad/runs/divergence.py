"""Divergence: the first step at which runs differ."""

import dataclasses

import numpy as np

# Below this share of the whole gradient's norm a variable's own norm is no
# yardstick: a bias whose gradient is only rounding would always differ.
_LEAST_SHARE = 1e-3
_NUMBERS_AT_ONCE = 2**23
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first step at which some runs differ beyond a tolerance.

    Attributes:
        runs: the names of the compared runs.
        common: what they share, "seed 3"; None when all runs were compared.
        repeats: whether they repeat each other.
        first_step: the first step that two of them share; None if no two of
            them share a step and nothing was compared.
        differ_step: the first step at which the runs that have it are not
            bitwise equal, or None.
        step: the first step at which a variable's gradient differs beyond the
            tolerance, or None.
        variables: (path, difference) of each variable that exceeds the
            tolerance at `step`, the largest first; relative to the gradient's
            norm.
        odd: the name of the run that is apart from the others, or None.
        largest: the largest difference seen up to `step`.
        ends: (name, last step) of the runs that end before the others and
            before `step`; after that, the remaining runs are compared.
    """

    runs: list[str]
    common: str | None
    repeats: bool
    first_step: int | None
    differ_step: int | None
    step: int | None
    variables: list[tuple[str, float]]
    odd: str | None
    largest: float
    ends: list[tuple[str, int]]


def diverge(aligned, chosen, tolerance, common=None, repeats=False):
    """Compare some runs, at every step those that have a record of it."""
    steps, rows = aligned.shared_rows(chosen)
    runs = [aligned.runs[r] for r in chosen]
    info = runs[0].info
    small = len(info["variables"]) * info["variable_sketch_size"]
    at_once = max(1, _NUMBERS_AT_ONCE // (small * (len(runs) + 2)))
    differ, largest, parted = None, 0.0, None
    for start in range(0, len(steps), at_once):
        block = slice(start, start + at_once)
        apart = _where_there(runs, rows[block])
        worst = apart.max(1)
        if differ is None and (worst > 0).any():
            differ = int(steps[block][np.argmax(worst > 0)])
        beyond = np.flatnonzero(worst > tolerance)
        last = beyond[0] + 1 if len(beyond) else len(worst)
        largest = max(largest, float(worst[:last].max(initial=0.0)))
        if len(beyond):
            parted = start + int(beyond[0])
            break
    names = [aligned.names[r] for r in chosen]
    step, variables, odd = None, [], None
    if parted is not None:
        step, gaps = int(steps[parted]), apart[beyond[0]].tolist()
        pairs = zip(aligned.variables, gaps)
        pairs = [(path, gap) for path, gap in pairs if gap > tolerance]
        variables = sorted(pairs, key=lambda p: -p[1])[:_MOST_NAMED]
        odd = _odd_one(runs, rows[parted], names)
    first = int(steps[0]) if len(steps) else None
    ends = _ends(names, runs, step)
    return Divergence(
        names, common, repeats, first, differ, step, variables, odd, largest,
        ends,
    )  # fmt: skip


def divergences(aligned, grouping, tolerance):
    """Compare repeats, then all runs of a seed, then all runs."""
    sets = {}
    for r, seed in enumerate(grouping.seeds):
        same = grouping.repeats[r].copy()
        same[r] = True
        of_seed = grouping.seeds == seed
        name = f"seed {aligned.infos[r]['seed']}"
        where = f", {aligned.infos[r].get('device')}"
        if grouping.groups is not None and grouping.groups[r] != name:
            where = f", {grouping.groups[r]}"
        if same.all() or (same == of_seed).all():
            where = ""
        sets.setdefault(tuple(np.flatnonzero(same)), (name + where, True))
        sets.setdefault(tuple(np.flatnonzero(of_seed)), (name, False))
    sets.setdefault(tuple(range(len(aligned.runs))), (None, False))
    # The sort is stable: sets of equal size stay in the order of the runs.
    compared = [
        diverge(aligned, np.array(chosen), tolerance, *what)
        for chosen, what in sorted(sets.items(), key=lambda s: len(s[0]))
        if len(chosen) > 1
    ]
    # Next to repeats, any other seed looks odd.
    mixed = grouping.independent.any() and grouping.repeats.any()
    return [
        dataclasses.replace(d, odd=None) if mixed and not d.common else d
        for d in compared
    ]


def _ends(names, runs, step):
    """Get the runs that end before the others, in the order of their ends."""
    lasts = [int(run.scalars["step"].max()) for run in runs]
    until = max(lasts) if step is None else step
    ends = [(name, last) for name, last in zip(names, lasts) if last < until]
    return sorted(ends, key=lambda end: end[1])


def _where_there(runs, rows):
    """Return the `_differences` at each step, of the runs that have it."""
    apart = np.zeros((len(rows), len(runs[0].info["variables"])))
    patterns, which = np.unique(rows >= 0, axis=0, return_inverse=True)
    for k, there in enumerate(patterns):
        at = np.flatnonzero(which.reshape(-1) == k)
        chosen = np.flatnonzero(there)
        apart[at] = _differences(
            [runs[r] for r in chosen], rows[np.ix_(at, chosen)]
        )
    return apart


def _differences(runs, rows):
    """Return the largest relative difference from the first run, (T, V)."""
    first = _read(runs[0], rows[:, 0])
    apart = np.zeros(first[1].shape)
    norms = [first[1]]
    for run, mine in zip(runs[1:], rows.T[1:]):
        other = _read(run, mine)
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.linalg.norm(other[0] - first[0], axis=2)
            # The norm is exact; the small sketch is only a rough measure.
            gap = np.maximum(gap, np.abs(other[1] - first[1]))
            same = ~np.isfinite(other[1]) & ~np.isfinite(first[1])
        gap = np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))
        apart = np.maximum(apart, gap)
        norms.append(other[1])
    # The median: a fault that makes a gradient vanish or explode must not set
    # the scale by which it is judged.
    norms = np.stack(norms)
    scale = np.median(np.where(np.isfinite(norms), norms, 0.0), axis=0)
    whole = np.sqrt((scale**2).sum(1, keepdims=True))
    scale = np.maximum(scale, _LEAST_SHARE * whole)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(apart > 0, apart / scale, 0.0)


def _read(run, rows):
    vectors = run.read("variables", rows).astype(np.float64)
    return vectors[..., 2:], vectors[..., 0]


def _odd_one(runs, rows, names):
    """Name the run that is far from the others at some step, or None."""
    there = np.flatnonzero(rows >= 0)
    if len(there) < 3:
        return None
    sketches = [runs[r].read("sketches", rows[r : r + 1])[0] for r in there]
    sketches = np.stack(sketches).astype(float)
    broken = np.flatnonzero(~np.isfinite(sketches).all(1))
    if len(broken):
        return names[there[broken[0]]] if len(broken) == 1 else None
    apart = np.linalg.norm(sketches[:, None] - sketches[None], axis=2)
    odd = farthest(apart)
    return None if odd is None else names[there[odd]]


def farthest(apart):
    """Return which is far from the others, which are near each other."""
    nearest = np.where(np.eye(len(apart), dtype=bool), np.inf, apart).min(1)
    odd = int(np.argmax(nearest))
    rest = np.delete(nearest, odd)
    return odd if nearest[odd] > 3 * np.median(rest) else None
