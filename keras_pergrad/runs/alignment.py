"""The runs that are compared, and the steps at which they are compared."""

import dataclasses
import os
from collections.abc import Iterable

import numpy as np

from keras_pergrad.common.arguments import path_text
from keras_pergrad.common.warning import warn_user
from keras_pergrad.runs import run_folder
from keras_pergrad.runs.records import (
    Run,
    RunRecordWarning,
    list_runs,
    read_run,
)
from keras_pergrad.runs.run_info import COMPARABLE_FIELDS

_MAX_NAMED = 5
_PROBE_HINT = (
    "Unless one is given, the probe is the first batch, which each shuffle "
    "changes: train with GradientVariance(probe=(x[:64], y[:64])). "
)


@dataclasses.dataclass
class AlignedRuns:
    """Runs side by side.

    Attributes:
        runs: the `Run`s.
        names: one a run, all different.
        steps: the compared steps, (T,).
        rows: the record of each step and run, (T, R); -1 for none.
        notes: what the reader of a comparison should know.
    """

    runs: list[Run]
    names: list[str]
    steps: np.ndarray
    rows: np.ndarray
    notes: list[str]

    @property
    def infos(self):
        return [run.info for run in self.runs]

    def scalars(self, name):
        """Return a scalar of every step and run, (T, R); NaN for none."""
        values = np.full(self.rows.shape, np.nan)
        for r, run in enumerate(self.runs):
            has_record = self.rows[:, r] >= 0
            values[has_record, r] = run.scalars[name][self.rows[has_record, r]]
        return values

    def shared_rows(self, indices):
        """Return all steps that two chosen runs have, (T,), and their rows."""
        run_steps = [self.runs[r].scalars["step"] for r in indices]
        steps = _shared_steps(run_steps)
        return steps, _record_indices(run_steps, steps)


def align(log_dir, max_steps):
    """Read the runs of one directory or several, and check them."""
    folders = directories(log_dir)
    paths = [path for d in folders for path in list_runs(d)]
    loaded = list(map(_read_run, paths))
    readable = [run for run in loaded if run is not None]
    runs = [run for run in readable if len(run)]
    empty = [str(run.info["run"]) for run in readable if not len(run)]
    location = ", ".join(map(repr, folders))
    for directory in folders:
        if run_folder.is_run(directory):
            raise ValueError(
                "`log_dir` expected a directory that holds runs. Received: "
                f"log_dir={directory!r}, which is one run. Pass "
                f"{os.path.dirname(os.path.abspath(directory))!r}."
            )
    if not runs:
        raise ValueError(
            f"`log_dir` expected a directory with runs that have records, as "
            f"callbacks.GradientVariance(log_dir=...) writes them. Received: "
            f"log_dir={location} with {len(paths)} runs and no record."
        )
    if len(runs) < 2:
        raise ValueError(
            f"Expected two or more runs with records. Received: log_dir="
            f"{location} with one, {runs[0].info['run']!r}. Train again with "
            "the same `log_dir` and another `run_name`, with another seed "
            "or, to see nondeterminism, with the same."
        )
    _require_comparable(runs)
    run_steps = [run.scalars["step"] for run in runs]
    shared = _shared_steps(run_steps)
    if not len(shared):
        listing = [
            f"{r.info['run']!r} at {_format_steps(s)}"
            for r, s in zip(runs, run_steps)
        ]
        raise ValueError(
            "Expected runs that were measured at the same steps. Received: "
            f"{'; '.join(listing[:3])}. Give GradientVariance the same number "
            "`every` in all runs."
        )
    steps = shared[even_indices(len(shared), max_steps)]
    rows = _record_indices(run_steps, steps)
    names = _unique_names(runs)
    notes = [f"Without any record: {', '.join(empty)}."] if empty else []
    notes += [*_setting_notes(names, runs)]
    notes += [*_step_notes(names, rows, common=len(shared))]
    return AlignedRuns(runs, names, steps, rows=rows, notes=notes)


def _read_run(path):
    try:
        return read_run(path)
    except run_folder.DamagedRun as error:
        warn_user(f"{error} The run is left out.", RunRecordWarning)


def directories(log_dir):
    """List what was given as one directory or several."""
    one = isinstance(log_dir, (str, os.PathLike))
    several = isinstance(log_dir, Iterable) and not one
    folders = [
        path_text("log_dir", folder, "a directory or a list of them")
        for folder in (log_dir if several else [log_dir])
    ]
    if not folders:
        raise ValueError(
            "`log_dir` expected a directory or a list of them. Received: an "
            "empty list."
        )
    return folders


def _require_comparable(runs):
    for field in COMPARABLE_FIELDS:
        values = [run.info.get(field) for run in runs]
        majority = max(values, key=values.count)
        for run, value in zip(runs, values):
            if value == majority:
                continue
            other = runs[values.index(majority)].info["run"]
            raise ValueError(
                f"Runs can be compared when they have the same `{field}`. "
                f"Received: {value!r} in run {run.info['run']!r}, but "
                f"{majority!r} in run {other!r} ({values.count(majority)} of "
                f"{len(runs)} runs). {_PROBE_HINT if field == 'probe' else ''}"
                "Keep runs of another model, loss or probe batch in a "
                "directory of their own."
            )


def even_indices(count, most):
    """Return up to `most` of `count` indices, evenly spread, with the ends."""
    indices = np.linspace(0, count - 1, min(count, most))
    return np.unique(indices.round().astype(int))


def steps_by_runs(is_present):
    """Yield the steps that the same runs have, and these runs, by indices."""
    patterns, codes = np.unique(is_present, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        yield np.flatnonzero(codes.reshape(-1) == k), np.flatnonzero(pattern)


def _shared_steps(run_steps):
    """Return the steps that two or more of some runs have."""
    steps, counts = np.unique(np.concatenate(run_steps), return_counts=True)
    return steps[counts > 1]


def _format_steps(steps):
    listed = ", ".join(str(s) for s in steps[:3])
    return listed + (", …" if len(steps) > 3 else "")


def _record_indices(run_steps, steps):
    """Return the record of each wanted step and run, (T, R); -1 for none."""
    columns = []
    for own in run_steps:
        # Past the end there is no record: look at the last, which differs.
        indices = np.minimum(np.searchsorted(own, steps), len(own) - 1)
        columns.append(np.where(own[indices] == steps, indices, -1))
    return np.stack(columns, 1)


def _unique_names(runs):
    """Return the runs' names, with their directory where two are equal."""
    names = [str(run.info["run"]) for run in runs]
    parents = [os.path.basename(os.path.dirname(run.path)) for run in runs]
    qualified = [
        name if names.count(name) == 1 else f"{parent}/{name}"
        for name, parent in zip(names, parents)
    ]
    return [
        name if qualified.count(name) == 1 else f"{name} ({i + 1})"
        for i, name in enumerate(qualified)
    ]


def _setting_notes(names, runs):
    """Say which layer settings differ, of those that two runs know."""
    first_run, values = {}, {}
    for name, run in zip(names, runs):
        for setting, value in (run.info.get("settings") or {}).items():
            first_run.setdefault((setting, str(value)), name)
            values.setdefault(setting, []).append(str(value))
    differences = []
    for setting, variants in values.items():
        choices = [
            f"{v} in {first_run[setting, v]}" for v in dict.fromkeys(variants)
        ]
        if len(choices) > 1:
            differences.append(f"{setting} is {', but '.join(choices)}")
    if differences:
        hidden = len(differences) - 3
        more = f" ({hidden} more)" if hidden > 0 else ""
        yield f"The models differ: {'; '.join(differences[:3])}{more}."


def _step_notes(names, rows, *, common):
    """Say which of the common steps are missing, and what to change."""
    shown = len(rows)
    if common > shown:
        yield f"{shown} of {common} common steps are compared."
    if common == 1:
        yield (
            "All runs share one step only: for curves record more often, "
            "with GradientVariance(every=10) or more epochs."
        )
    counts = (rows >= 0).sum(0)
    if counts.min() < shown:
        shorter = [n for n, c in zip(names, counts) if c < counts.max()]
        fewer = f": fewer in {', '.join(shorter[:_MAX_NAMED])}"
        more = ", …" if len(shorter) > _MAX_NAMED else ""
        yield (
            f"Not every run has every step{fewer if shorter else ''}{more}. "
            "At each step the runs that have it are compared."
        )
