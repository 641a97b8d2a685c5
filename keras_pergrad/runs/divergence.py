"""Divergence: the first step at which runs differ."""

import dataclasses

import numpy as np

from keras_pergrad.runs.alignment import steps_by_runs

# Below this share of the whole gradient's norm a variable's own norm is no
# reference: a bias whose gradient is only rounding would always differ.
_MIN_NORM_SHARE = 1e-3
_NUMBERS_AT_ONCE = 2**23
_MAX_NAMED = 5


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
        outlier: the name of the run that is far from the others, or None.
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
    outlier: str | None
    largest: float
    ends: list[tuple[str, int]]


def find_divergence(aligned, indices, tolerance, *, common=None, repeats=False):
    """Compare some runs, at every step those that have a record of it."""
    steps, rows = aligned.shared_rows(indices)
    runs = [aligned.runs[r] for r in indices]
    info = runs[0].info
    row_numbers = len(info["variables"]) * info["variable_sketch_size"]
    block_steps = max(1, _NUMBERS_AT_ONCE // (row_numbers * (len(runs) + 2)))
    first_unequal, largest, diverging_index = None, 0.0, None
    for start in range(0, len(steps), block_steps):
        block = slice(start, start + block_steps)
        differences = _present_differences(runs, rows[block])
        worst_differences = differences.max(1)
        if first_unequal is None and (worst_differences > 0).any():
            first_unequal = int(steps[block][np.argmax(worst_differences > 0)])
        exceeding = np.flatnonzero(worst_differences > tolerance)
        last = exceeding[0] + 1 if len(exceeding) else len(worst_differences)
        largest = max(largest, float(worst_differences[:last].max(initial=0.0)))
        if len(exceeding):
            diverging_index = start + int(exceeding[0])
            break
    names = [aligned.names[r] for r in indices]
    step, variables, outlier = None, [], None
    if diverging_index is not None:
        step = int(steps[diverging_index])
        gaps = differences[exceeding[0]].tolist()
        paths = [v["path"] for v in aligned.runs[0].info["variables"]]
        pairs = [pair for pair in zip(paths, gaps) if pair[1] > tolerance]
        variables = sorted(pairs, key=lambda p: -p[1])[:_MAX_NAMED]
        outlier = _find_outlier(runs, rows[diverging_index], names)
    return Divergence(
        names,
        common,
        repeats,
        first_step=int(steps[0]) if len(steps) else None,
        differ_step=first_unequal,
        step=step,
        variables=variables,
        outlier=outlier,
        largest=largest,
        ends=_early_ends(names, runs, step),
    )


def find_divergences(aligned, grouping, tolerance):
    """Compare repeats, then all runs of a seed, then all runs."""
    run_sets = {}
    for r, seed in enumerate(grouping.seeds):
        same_run = grouping.repeats[r].copy()
        same_run[r] = True
        of_seed = grouping.seeds == seed
        name = f"seed {aligned.infos[r]['seed']}"
        suffix = f", {aligned.infos[r].get('device')}"
        if grouping.groups is not None and grouping.groups[r] != name:
            suffix = f", {grouping.groups[r]}"
        if same_run.all() or (same_run == of_seed).all():
            suffix = ""
        run_sets.setdefault(
            tuple(np.flatnonzero(same_run)), (name + suffix, True)
        )
        run_sets.setdefault(tuple(np.flatnonzero(of_seed)), (name, False))
    run_sets.setdefault(tuple(range(len(aligned.runs))), (None, False))
    # The sort is stable: sets of equal size stay in the order of the runs.
    compared = [
        find_divergence(
            aligned,
            np.array(indices),
            tolerance,
            common=common,
            repeats=are_repeats,
        )
        for indices, (common, are_repeats) in sorted(
            run_sets.items(), key=lambda s: len(s[0])
        )
        if len(indices) > 1
    ]
    # Next to repeats, any other seed looks like an outlier.
    has_both = grouping.independent.any() and grouping.repeats.any()
    return [
        dataclasses.replace(d, outlier=None) if has_both and not d.common else d
        for d in compared
    ]


def _early_ends(names, runs, step):
    """Get the runs that end before the others, in the order of their ends."""
    last_steps = [int(run.scalars["step"].max()) for run in runs]
    final_step = max(last_steps) if step is None else step
    ends = [
        (name, last)
        for name, last in zip(names, last_steps)
        if last < final_step
    ]
    return sorted(ends, key=lambda end: end[1])


def _present_differences(runs, rows):
    """Return the `_differences` at each step, of the runs that have it."""
    differences = np.zeros((len(rows), len(runs[0].info["variables"])))
    for step_indices, run_indices in steps_by_runs(rows >= 0):
        differences[step_indices] = _differences(
            [runs[r] for r in run_indices],
            rows[np.ix_(step_indices, run_indices)],
        )
    return differences


def _differences(runs, rows):
    """Return the largest relative difference from the first run, (T, V)."""
    first = _read_variables(runs[0], rows[:, 0])
    differences = np.zeros(first[1].shape)
    norms = [first[1]]
    for run, run_rows in zip(runs[1:], rows.T[1:]):
        other = _read_variables(run, run_rows)
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.linalg.norm(other[0] - first[0], axis=2)
            # The norm is exact; the small sketch is only a rough measure.
            gap = np.maximum(gap, np.abs(other[1] - first[1]))
            both_nonfinite = ~np.isfinite(other[1]) & ~np.isfinite(first[1])
        gap = np.where(
            both_nonfinite, 0.0, np.where(np.isnan(gap), np.inf, gap)
        )
        differences = np.maximum(differences, gap)
        norms.append(other[1])
    # The median: a fault that makes a gradient vanish or explode must not set
    # the scale by which it is judged.
    norms = np.stack(norms)
    scale = np.median(np.where(np.isfinite(norms), norms, 0.0), axis=0)
    total_norm = np.sqrt((scale**2).sum(1, keepdims=True))
    scale = np.maximum(scale, _MIN_NORM_SHARE * total_norm)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(differences > 0, differences / scale, 0.0)


def _read_variables(run, rows):
    vectors = run.read("variables", rows).astype(np.float64)
    return vectors[..., 2:], vectors[..., 0]


def _find_outlier(runs, rows, names):
    """Name the run that is far from the others at some step, or None."""
    present = np.flatnonzero(rows >= 0)
    if len(present) < 3:
        return None
    sketches = [runs[r].read("sketches", rows[r : r + 1])[0] for r in present]
    sketches = np.stack(sketches).astype(float)
    nonfinite = np.flatnonzero(~np.isfinite(sketches).all(1))
    if len(nonfinite):
        return names[present[nonfinite[0]]] if len(nonfinite) == 1 else None
    distances = np.linalg.norm(sketches[:, None] - sketches[None], axis=2)
    outlier = outlier_index(distances)
    return None if outlier is None else names[present[outlier]]


def outlier_index(distances):
    """Return the index that is far from all others, or None."""
    # An outlier is far even from its nearest neighbour.
    nearest = np.where(
        np.eye(len(distances), dtype=bool), np.inf, distances
    ).min(1)
    outlier = int(np.argmax(nearest))
    rest = np.delete(nearest, outlier)
    return outlier if nearest[outlier] > 3 * np.median(rest) else None
