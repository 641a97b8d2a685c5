"""The tracker that writes to Weights & Biases."""

import dataclasses
from typing import Any

from keras_pergrad.runs.extras import load
from keras_pergrad.trackers.tracker import Tracker

# As many as a run's page draws.
_MOST_BINS = 512


class WandB(Tracker):
    """Writes to Weights & Biases, each `fit` a run, or to a run of yours.

    The figures have their names in the logs, those of variables are
    `<instrument>/<path>`; their axis is `update`, the number of the
    optimizer's updates, whatever else is logged to the run. The facts about
    the run are its config. Needs the extra `keras-pergrad[wandb]`.

    Args:
        project: of the runs.
        run: a run of `wandb.init`, which is not finished here; None: a new one
            for each `fit`.
        **settings: more arguments of `wandb.init` for these runs, such as
            `mode="offline"`, `dir=`, `group=`, or `id=` with
            `resume="allow"` for a `fit` that resumes.

    Raises:
        ImportError: `wandb` is not installed.
        ValueError: both a run and what a new one would need were given.

    Example:

    ```python
    tracker = kpg.trackers.WandB(project="digits", mode="offline")
    watch = kpg.callbacks.GradientVariance(trackers=[tracker])
    ```
    """

    def __init__(
        self, project: str | None = None, *, run: Any = None, **settings: Any
    ):
        if run is not None and (project is not None or settings):
            raise ValueError(
                "`run` is a run that was begun already, so the arguments of a "
                f"new one were expected to be absent. Received: run={run!r}, "
                f"project={project!r}, {settings}"
            )
        self._wandb = load("wandb", "trackers.WandB", "wandb")
        # A run of its own, even where another one is going on.
        self._settings = {"reinit": "create_new", "project": project} | settings
        self._given, self._run, self._named = run, run, set()
        self._exit_code = 0

    def begin(self, run):
        self._named, self._exit_code = set(), 0
        if self._given is None:
            facts = {"name": run.run or None, "config": dataclasses.asdict(run)}
            self._run = self._wandb.init(**(facts | self._settings))

    def write(self, reading):
        row = self.numbers(reading) | {
            name: self._wandb.Histogram(np_histogram=_bins(histogram))
            for name, histogram in reading.histograms.items()
        }
        for name in row.keys() - self._named:
            self._run.define_metric(name, step_metric="update")
        self._named |= row.keys()
        self._run.log({"update": reading.step, **row})

    def interrupt(self):
        self._exit_code = 1

    def end(self):
        if self._given is None and self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=self._exit_code)


def _bins(histogram):
    """Return counts and edges, bins joined until they are few enough."""
    counts, edges = list(histogram.counts), list(histogram.edges)
    width = -(-len(counts) // _MOST_BINS)
    starts = range(0, len(counts), width)
    joined = [sum(counts[start : start + width]) for start in starts]
    return joined, [edges[start] for start in starts] + edges[-1:]
