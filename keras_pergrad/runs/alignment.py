"""The runs that are compared, and the steps at which they are compared."""

import dataclasses
import os
import warnings

import numpy as np

from keras_pergrad.runs import store
from keras_pergrad.runs.store import Run, RunRecordWarning

_COMPARED = ("loss", "gradient_norm", "gradient_variance")
_MOST = 5
_ONE_PROBE = (
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
        """Return a scalar of every step and run, (T, R); NaN for none."""
        out = np.full(self.rows.shape, np.nan)
        for r, run in enumerate(self.runs):
            there = self.rows[:, r] >= 0
            out[there, r] = run.scalars[name][self.rows[there, r]]
        return out

    def shared_rows(self, chosen):
        """Return all steps that two chosen runs have, (T,), and their rows."""
        each = [self.runs[r].scalars["step"] for r in chosen]
        steps = _shared(each)
        return steps, np.stack([_find(mine, steps) for mine in each], 1)


def align(log_dir, max_steps):
    """Read the runs of one directory or several, and check them."""
    folders = directories(log_dir)
    paths = [path for d in folders for path in store.list_runs(d)]
    found = list(map(_read, paths))  # No frame between, for the warning.
    read = [run for run in found if run is not None]
    runs = [run for run in read if len(run)]
    empty = [str(run.info["run"]) for run in read if not len(run)]
    notes = [f"Without any record: {', '.join(empty)}."] if empty else []
    where = ", ".join(map(repr, folders))
    for directory in folders:
        if os.path.isfile(os.path.join(directory, store.FILE)):
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
    each = [run.scalars["step"] for run in runs]
    shared = _shared(each)
    if not len(shared):
        first = [f"{r.info['run']!r} at {_some(s)}" for r, s in zip(runs, each)]
        raise ValueError(
            "Expected runs that were measured at the same steps. Received: "
            f"{'; '.join(first[:3])}. Give GradientVariance the same number "
            "`every` in all runs."
        )
    steps = shared[evenly(len(shared), max_steps)]
    rows = np.stack([_find(mine, steps) for mine in each], 1)
    aligned = AlignedRuns(runs, _names(runs), steps, rows, len(shared), notes)
    notes += [*_on_settings(aligned), *_on_steps(aligned)]
    return aligned


def _read(path):
    try:
        return store.read_run(path, _COMPARED)
    except store.DamagedRun as error:
        said = f"{error} The run is left out."
        warnings.warn(said, RunRecordWarning, stacklevel=4)


def directories(log_dir):
    """List what was given as one directory or several."""
    one = isinstance(log_dir, (str, os.PathLike))
    folders = [os.fspath(d) for d in ([log_dir] if one else log_dir)]
    if not folders:
        raise ValueError(
            "`log_dir` expected a directory or a list of them. Received: an "
            "empty list."
        )
    return folders


def _check_equal(runs):
    for field in store.EQUAL:
        values = [run.info.get(field) for run in runs]
        most = max(values, key=values.count)
        for run, value in zip(runs, values):
            if value == most:
                continue
            other = runs[values.index(most)].info["run"]
            raise ValueError(
                f"Runs can be compared when they have the same `{field}`. "
                f"Received: {value!r} in run {run.info['run']!r}, but "
                f"{most!r} in run {other!r} ({values.count(most)} of "
                f"{len(runs)} runs). {_ONE_PROBE if field == 'probe' else ''}"
                "Keep runs of another model, loss or probe batch in a "
                "directory of their own."
            )


def evenly(count, most):
    """Return up to `most` of `count` indices, evenly spread, with the ends."""
    chosen = np.linspace(0, count - 1, min(count, most))
    return np.unique(chosen.round().astype(int))


def _shared(each):
    """Return the steps that two or more of some runs have."""
    steps, counts = np.unique(np.concatenate(each), return_counts=True)
    return steps[counts > 1]


def _some(steps):
    shown = ", ".join(str(s) for s in steps[:3])
    return shown + (", …" if len(steps) > 3 else "")


def _find(steps, wanted):
    """Return the record of each wanted step; -1 for none."""
    at = np.minimum(np.searchsorted(steps, wanted), len(steps) - 1)
    return np.where(steps[at] == wanted, at, -1)


def _names(runs):
    """Return the runs' names, with their directory where two are equal."""
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


def _on_settings(aligned):
    """Say which layer settings differ, of those that two runs know."""
    first, values = {}, {}
    for name, info in zip(aligned.names, aligned.infos):
        for setting, value in (info.get("settings") or {}).items():
            first.setdefault((setting, str(value)), name)
            values.setdefault(setting, []).append(str(value))
    differences = []
    for setting, seen in values.items():
        each = [f"{v} in {first[setting, v]}" for v in dict.fromkeys(seen)]
        if len(each) > 1:
            differences.append(f"{setting} is {', but '.join(each)}")
    if differences:
        hidden = len(differences) - 3
        more = f" ({hidden} more)" if hidden > 0 else ""
        yield f"The models differ: {'; '.join(differences[:3])}{more}."


def _on_steps(aligned):
    """Say which steps are missing, and what to change."""
    shown, common = len(aligned.steps), aligned.common_steps
    if common > shown:
        yield f"{shown} of {common} common steps are compared."
    if common == 1:
        yield (
            "All runs share one step only: for curves record more often, "
            "with GradientVariance(every=10) or more epochs."
        )
    counts = (aligned.rows >= 0).sum(0)
    if counts.min() < shown:
        short = [n for n, c in zip(aligned.names, counts) if c < counts.max()]
        yield (
            "Not every run has every step"
            + (f": fewer in {', '.join(short[:_MOST])}" if short else "")
            + (", …" if len(short) > _MOST else "")
            + ". At each step the runs that have it are compared."
        )
