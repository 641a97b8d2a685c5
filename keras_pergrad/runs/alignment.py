"""Which runs are compared, and at which steps."""

import dataclasses
import os

import numpy as np

from keras_pergrad.runs.reader import Run, list_runs, read_run
from keras_pergrad.runs.record import INFO_FILE

# Gradients can be compared where all of these are equal.
_EQUAL = (
    "architecture",
    "loss",
    "probe",
    "probe_samples",
    "sketch_size",
    "variable_sketch_size",
)
# Checksums cost one reading of all vectors; above this the disk is trusted.
_VERIFIED_BYTES = 2**29


@dataclasses.dataclass
class AlignedRuns:
    """Runs side by side.

    Attributes:
        runs: the `Run`s.
        names: one a run, all different.
        steps: those compared, (T,).
        rows: the record of each step and run, (T, R); -1 for none.
        common_steps: how many steps two runs or more have.
        notes: what the reader of a comparison should know.
    """

    runs: list[Run]
    names: list[str]
    steps: np.ndarray
    rows: np.ndarray
    common_steps: int
    notes: list[str]

    @property
    def infos(self):
        return [run.info for run in self.runs]

    @property
    def variables(self):
        """The variables' paths, as the first run has them."""
        return [v["path"] for v in self.runs[0].info["variables"]]

    def scalars(self, name):
        """A scalar of every step and run, (T, R); NaN for none."""
        out = np.full(self.rows.shape, np.nan)
        for r, run in enumerate(self.runs):
            there = self.rows[:, r] >= 0
            out[there, r] = run.scalars[name][self.rows[there, r]]
        return out

    def shared_rows(self, chosen):
        """All steps that two or more chosen runs have, and their records.

        Returns:
            (steps (T,), rows (T, chosen), -1 for none); not thinned.
        """
        each = [self.runs[r].scalars["step"] for r in chosen]
        steps = _shared(each)
        return steps, np.stack([_find(mine, steps) for mine in each], 1)


def align(log_dir, max_steps):
    """Reads the runs of one directory or several, and checks them.

    Raises:
        ValueError: fewer than two runs with records, runs of different
            models, losses or probe batches, or no step that two runs share.
    """
    directories = _directories(log_dir)
    paths = [p for d in directories for p in list_runs(d)]
    size = sum(_size(path) for path in paths)
    runs = [read_run(p, verify=size <= _VERIFIED_BYTES) for p in paths]
    notes = []
    if size > _VERIFIED_BYTES:
        notes.append("Checksums were not verified: more than 512 MiB.")
    empty = [r.info["run"] for r in runs if not len(r)]
    if empty:
        notes.append(f"Without any record: {', '.join(map(str, empty))}.")
    runs = [run for run in runs if len(run)]
    where = ", ".join(repr(d) for d in directories)
    for directory in directories:
        if os.path.isfile(os.path.join(directory, INFO_FILE)):
            raise ValueError(
                "`log_dir` expected a directory that holds runs. Received: "
                f"log_dir={directory!r}, which is one run. Pass "
                f"{os.path.dirname(os.path.abspath(directory))!r}."
            )
    if not runs:
        raise ValueError(
            f"`log_dir` expected a directory with runs that have records, as "
            f"callbacks.GradientVariance(log_dir=...) writes them. Received: "
            f"log_dir={where} with {len(paths)} runs and no record."
        )
    if len(runs) < 2:
        raise ValueError(
            f"Expected two or more runs with records. Received: log_dir="
            f"{where} with one, {runs[0].info['run']!r}. Train again with "
            "the same `log_dir` and another `run_name`, with another seed "
            "or, to see nondeterminism, with the same."
        )
    _check_equal(runs)
    steps, common = _steps(runs, max_steps)
    if common > len(steps):
        notes.append(f"{len(steps)} of {common} common steps are shown.")
    rows = np.stack([_find(r.scalars["step"], steps) for r in runs], 1)
    return AlignedRuns(runs, _names(runs), steps, rows, common, notes)


def _directories(log_dir):
    if isinstance(log_dir, (str, os.PathLike)):
        return [os.fspath(log_dir)]
    directories = [os.fspath(d) for d in log_dir]
    if not directories:
        raise ValueError(
            "`log_dir` expected a directory or a list of them. Received: an "
            "empty list."
        )
    return directories


def _size(path):
    return sum(entry.stat().st_size for entry in os.scandir(path))


def _check_equal(runs):
    for field in _EQUAL:
        values = [run.info.get(field) for run in runs]
        # Older records do not know their loss.
        known = [value for value in values if value is not None]
        most = max(known, key=known.count, default=None)
        for run, value in zip(runs, values):
            if value is None or value == most:
                continue
            other = runs[values.index(most)].info["run"]
            raise ValueError(
                f"Runs can be compared when they have the same `{field}`. "
                f"Received: {value!r} in run {run.info['run']!r}, but "
                f"{most!r} in run {other!r} ({values.count(most)} of "
                f"{len(runs)} runs). Keep runs of another model, loss or "
                "probe batch in a directory of their own."
            )


def _steps(runs, max_steps):
    """The steps to compare, and how many there are in all."""
    each = [run.scalars["step"] for run in runs]
    steps = _shared(each)
    if not len(steps):
        raise ValueError(
            "Expected runs that were measured at the same steps. Received: "
            + "; ".join(
                f"{run.info['run']!r} at {_some(mine)}"
                for run, mine in zip(runs[:3], map(np.unique, each))
            )
            + ". Give GradientVariance the same `every` in all runs."
        )
    count = min(len(steps), max_steps)
    kept = np.unique(np.linspace(0, len(steps) - 1, count).round().astype(int))
    return steps[kept], len(steps)


def _shared(each):
    """The steps that two or more of some runs have."""
    steps = np.concatenate([np.unique(mine) for mine in each])
    steps, counts = np.unique(steps, return_counts=True)
    return steps[counts > 1]


def _some(steps):
    shown = ", ".join(str(s) for s in steps[:3])
    return shown + (", …" if len(steps) > 3 else "")


def _find(steps, wanted):
    """The last record of each wanted step; -1 for none."""
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    at = np.searchsorted(ordered, wanted, side="right") - 1
    found = (at >= 0) & (ordered[at] == wanted)
    return np.where(found, order[at], -1)


def _names(runs):
    """The runs' names, with their directory where two are equal."""
    names = [str(run.info["run"]) for run in runs]
    parents = [os.path.basename(os.path.dirname(run.path)) for run in runs]
    plain = [
        name if names.count(name) == 1 else f"{parent}/{name}"
        for name, parent in zip(names, parents)
    ]
    return [
        name if plain.count(name) == 1 else f"{name} ({i + 1})"
        for i, name in enumerate(plain)
    ]
