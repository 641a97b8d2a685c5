"""Where runs that began together part."""

import dataclasses

import numpy as np

# Below this share of the whole gradient's norm a variable's own norm is no
# yardstick: a bias whose gradient is only rounding would always differ.
_LEAST_SHARE = 1e-3
_NUMBERS_AT_ONCE = 2**21
_MOST_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Divergence:
    """The first step at which some runs differ beyond a tolerance.

    Attributes:
        runs: the names of those compared.
        common: what they share, "seed 3"; None when all runs were compared.
        first_step: the first step that they have in common.
        differ_step: the first at which they are not bitwise equal, or None.
        step: the first at which a variable's gradient differs beyond the
            tolerance, or None.
        variables: (path, difference) of those that do at `step`, the
            largest first; relative to the gradient's norm.
        odd: the name of the run that is apart from the others, or None.
        largest: the largest difference seen up to `step`.
    """

    runs: list[str]
    common: str | None
    first_step: int
    differ_step: int | None
    step: int | None
    variables: list[tuple[str, float]]
    odd: str | None
    largest: float


def diverge(aligned, chosen, tolerance, common=None):
    """Compares some runs at every step that all of them have.

    Args:
        aligned: the `AlignedRuns`.
        chosen: indices of two runs or more.
        tolerance: largest difference of a variable's gradient that counts
            as equal, relative to its norm (or to a thousandth of the whole
            gradient's, where that is larger).
        common: what the runs share, for the report.

    Returns:
        A `Divergence`, or None where the runs share no step.
    """
    steps, rows = aligned.shared_rows(chosen)
    if not len(steps):
        return None
    runs = [aligned.runs[r] for r in chosen]
    # All runs' small sketches are held, and one run's whole rows.
    small = int(np.prod(runs[0].variable_sketches.shape[1:]))
    row = 2 * small + runs[0].sketches.shape[1]
    at_once = max(1, _NUMBERS_AT_ONCE // (small * len(runs) + row))
    differ, largest, found = None, 0.0, None
    for start in range(0, len(steps), at_once):
        block = slice(start, start + at_once)
        apart = _differences(runs, rows[block])
        worst = apart.max(1)
        if differ is None and (worst > 0).any():
            differ = int(steps[block][np.argmax(worst > 0)])
        beyond = np.flatnonzero(worst > tolerance)
        last = beyond[0] + 1 if len(beyond) else len(worst)
        largest = max(largest, float(worst[:last].max(initial=0.0)))
        if len(beyond):
            found = start + int(beyond[0]), apart[beyond[0]]
            break
    variables, odd = [], None
    if found is not None:
        order = np.argsort(-found[1], kind="stable")[:_MOST_NAMED]
        variables = [
            (aligned.variables[v], float(found[1][v]))
            for v in order
            if found[1][v] > tolerance
        ]
        odd = _odd_one(runs, rows[found[0]])
    return Divergence(
        runs=[aligned.names[r] for r in chosen],
        common=common,
        first_step=int(steps[0]),
        differ_step=differ,
        step=None if found is None else int(steps[found[0]]),
        variables=variables,
        odd=None if odd is None else aligned.names[chosen[odd]],
        largest=largest,
    )


def divergences(aligned, related, tolerance):
    """Of repeats, then of all runs of a seed, then of all runs."""
    sets = {}
    for r, seed in enumerate(related.seeds):
        same = related.repeats[r].copy()
        same[r] = True
        of_seed = related.seeds == seed
        name = f"seed {aligned.infos[r]['seed']}"
        where = f", {aligned.infos[r].get('device')}"
        if related.groups is not None and related.groups[r] != name:
            where = f", {related.groups[r]}"
        if same.all() or (same == of_seed).all():
            where = ""
        sets.setdefault(tuple(np.flatnonzero(same)), name + where)
        sets.setdefault(tuple(np.flatnonzero(of_seed)), name)
    sets.setdefault(tuple(range(len(aligned.runs))), None)
    # Stable: sets of one size stay in the order of the runs.
    found = [
        diverge(aligned, np.array(chosen), tolerance, name)
        for chosen, name in sorted(sets.items(), key=lambda s: len(s[0]))
        if len(chosen) > 1
    ]
    return [f for f in found if f is not None]


def _differences(runs, rows):
    """The largest relative difference from the first run, (T, V)."""
    first = _read(runs[0], rows[:, 0])
    apart = np.zeros(first[1].shape)
    norms = [first[1]]
    for run, mine in zip(runs[1:], rows.T[1:]):
        other = _read(run, mine)
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.linalg.norm(other[0] - first[0], axis=2)
            # A norm is exact where the small sketch is a rough measure.
            gap = np.maximum(gap, np.abs(other[1] - first[1]))
            same = ~np.isfinite(other[1]) & ~np.isfinite(first[1])
        gap = np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))
        apart = np.maximum(apart, gap)
        norms.append(other[1])
    # The middle one: a fault that makes a gradient vanish or explode must
    # not set the scale that it is judged by.
    norms = np.stack(norms)
    scale = np.median(np.where(np.isfinite(norms), norms, 0.0), axis=0)
    whole = np.sqrt((scale**2).sum(1, keepdims=True))
    scale = np.maximum(scale, _LEAST_SHARE * whole)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(apart > 0, apart / scale, 0.0)


def _read(run, rows):
    found = run.read(rows)
    sketches = found["variable_sketches"].astype(np.float64)
    return sketches, found["norms"].astype(np.float64)


def _odd_one(runs, rows):
    """The run that is far from the others, which are near each other."""
    if len(runs) < 3:
        return None
    pairs = zip(runs, rows)
    sketches = np.stack([run.sketches[row].astype(float) for run, row in pairs])
    broken = np.flatnonzero(~np.isfinite(sketches).all(1))
    if len(broken):
        return int(broken[0]) if len(broken) == 1 else None
    apart = np.linalg.norm(sketches[:, None] - sketches[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.min(1)
    odd = int(np.argmax(nearest))
    rest = np.delete(nearest, odd)
    return odd if nearest[odd] > 3 * np.median(rest) else None
