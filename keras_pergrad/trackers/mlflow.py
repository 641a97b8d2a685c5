"""The tracker that writes to MLflow."""

import dataclasses
import json
import os
import re
import time
from typing import Any

from keras_pergrad.runs.extras import load
from keras_pergrad.trackers.tracker import Tracker

# What a server takes in one request.
_MOST_METRICS = 1000
_PARAMETERS = (
    "batch_size",
    "device",
    "jit_compile",
    "precision",
    "probe_samples",
    "seed",
    "steps_per_epoch",
)


class MLflow(Tracker):
    """Writes to MLflow, each `fit` a run, or to a run of yours.

    The figures are metrics under their names in the logs, those of variables
    under `<instrument>/<path>`; their step is the number of the optimizer's
    updates. MLflow knows no histograms: those of a measurement are the
    artifact `histograms/<step>.json`. The facts about the run are the artifact
    `run.json`, the plainest of them its parameters, and the tags its tags.
    An interrupted `fit` ends its run as KILLED.
    Needs the extra `keras-pergrad[mlflow]`.

    Args:
        experiment: the name of the experiment; it is made if it is missing.
        run: a run of `mlflow.start_run`, or its id; it is not ended here.
            None: a new one for each `fit`.
        tracking_uri: of the store, such as `"sqlite:///mlflow.db"`; None:
            that of `mlflow.get_tracking_uri()`.

    Raises:
        ImportError: `mlflow` is not installed.
        ValueError: both a run and an experiment were given.

    Example:

    ```python
    tracker = kpg.trackers.MLflow("digits")
    watch = kpg.callbacks.GradientVariance(trackers=[tracker])
    ```
    """

    def __init__(
        self,
        experiment: str | None = None,
        *,
        run: Any = None,
        tracking_uri: str | os.PathLike | None = None,
    ):
        if run is not None and experiment is not None:
            raise ValueError(
                "`run` belongs to an experiment already, so `experiment` was "
                f"expected to be absent. Received: experiment={experiment!r}"
            )
        self._mlflow = load("mlflow", "trackers.MLflow", "mlflow")
        self._client = self._mlflow.MlflowClient(tracking_uri)
        self._experiment = "Default" if experiment is None else experiment
        self._given = getattr(getattr(run, "info", None), "run_id", run)
        self._run, self._status = self._given, "FINISHED"

    def begin(self, run):
        self._status = "FINISHED"
        if self._given is not None:
            return
        client, facts = self._client, dataclasses.asdict(run)
        known = client.get_experiment_by_name(self._experiment)
        begun = client.create_run(
            client.create_experiment(self._experiment)
            if known is None
            else known.experiment_id,
            run_name=run.run or None,
            tags={name: str(value) for name, value in run.tags.items()},
        )
        self._run = begun.info.run_id
        param = self._mlflow.entities.Param
        known = [param(k, str(facts[k])) for k in _PARAMETERS]
        client.log_batch(self._run, params=known)
        client.log_text(self._run, run.to_json(), "run.json")

    def write(self, reading):
        now, metric = int(1000 * time.time()), self._mlflow.entities.Metric
        metrics = [
            metric(_name(name), value, now, reading.step)
            for name, value in self.numbers(reading).items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            few = metrics[start : start + _MOST_METRICS]
            self._client.log_batch(self._run, metrics=few)
        if reading.histograms:
            histograms = {
                name: dataclasses.asdict(histogram)
                for name, histogram in reading.histograms.items()
            }
            place = f"histograms/{reading.step:09}.json"
            self._client.log_text(self._run, json.dumps(histograms), place)

    def interrupt(self):
        self._status = "KILLED"

    def end(self):
        if self._given is None and self._run is not None:
            run, self._run = self._run, None
            self._client.set_terminated(run, self._status)


def _name(name):
    """Return a name with only the characters that MLflow allows."""
    return re.sub(r"[^\w.\-: /]", "_", name)
