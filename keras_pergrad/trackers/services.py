"""The trackers that write to services: TensorBoard, MLflow, W&B."""

import dataclasses
import json
import os
import re
import time
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import path_text, text
from keras_pergrad.common.optional import import_extra
from keras_pergrad.trackers.tracker import Tracker

# What an MLflow server takes in one request.
_MAX_METRICS = 1000
# As many as a run's page of Weights & Biases draws.
_MAX_BINS = 512
_PARAMETERS = (
    "batch_size",
    "device",
    "jit_compile",
    "precision",
    "probe_samples",
    "seed",
    "steps_per_epoch",
)


class TensorBoard(Tracker):
    """Writes scalars and histograms that TensorBoard shows.

    `tensorboard --logdir <log_dir>` then has the figures under their names in
    the logs, those of variables under `<instrument>/<path>`, and histograms
    where they are measured. TensorBoard itself is not needed to write them.

    Args:
        log_dir: the directory for the event files, such as
            `"logs/fit1/gradients"` beside those of
            `keras.callbacks.TensorBoard("logs/fit1")`. A `fit` that resumes
            adds a file and continues the count of steps.

    Example:

    >>> import tempfile, keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 3))
    >>> board = kpg.trackers.TensorBoard(tempfile.mkdtemp())
    >>> watch = kpg.callbacks.GradientVariance(probe=(x, y), trackers=[board])
    >>> history = model.fit(x, y, verbose=0, callbacks=[watch])
    """

    def __init__(self, log_dir: str | os.PathLike[str]):
        self.log_dir: str = path_text(
            "log_dir", log_dir, "a directory, such as 'logs'"
        )
        self._writer = None

    def begin(self, run: Any) -> None:
        self._writer = tf.summary.create_file_writer(self.log_dir)

    def write(self, reading: Any) -> None:
        with (
            self._writer.as_default(step=reading.step),
            tf.summary.record_if(True),
        ):
            for name, value in self.numbers(reading).items():
                _write_summary(name, "scalars", np.float32(value))
            for name, histogram in reading.histograms.items():
                edges = np.asarray(histogram.edges, np.float64)
                columns = [edges[:-1], edges[1:], histogram.counts]
                _write_summary(name, "histograms", np.stack(columns, 1))
        # A process that is killed loses nothing.
        self._writer.flush()

    def end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _write_summary(name, plugin, value):
    # Those of tf.summary.scalar and .histogram, which need the package
    # `tensorboard`, and of which the second counts the values by itself.
    metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": plugin})
    tf.summary.write(name, value, metadata=metadata)


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
        experiment: the name of the experiment; created if it is missing.
        run: a run of `mlflow.start_run`, or its id; it is not ended here.
            None: a new one for each `fit`.
        tracking_uri: the store, such as `"sqlite:///mlflow.db"`; None:
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
        tracking_uri: str | os.PathLike[str] | None = None,
    ):
        if run is not None and experiment is not None:
            raise ValueError(
                "`run` belongs to an experiment already, so `experiment` was "
                f"expected to be absent. Received: experiment={experiment!r}"
            )
        if experiment is not None:
            text("experiment", experiment, " or None")
        if tracking_uri is not None:
            expected = "a store, such as 'sqlite:///mlflow.db', or None"
            path_text("tracking_uri", tracking_uri, expected)
        self._mlflow = import_extra("mlflow", "trackers.MLflow", "mlflow")
        self._user_run = getattr(getattr(run, "info", None), "run_id", run)
        if not isinstance(self._user_run, (str, type(None))):
            raise TypeError(
                "`run` expected a run of mlflow.start_run(), its id or None. "
                f"Received: run={run!r}"
            )
        self._client = self._mlflow.MlflowClient(tracking_uri)
        self._experiment = "Default" if experiment is None else experiment
        self._run, self._status = self._user_run, "FINISHED"

    def begin(self, run: Any) -> None:
        self._status = "FINISHED"
        if self._user_run is not None:
            return
        client, facts = self._client, dataclasses.asdict(run)
        experiment = client.get_experiment_by_name(self._experiment)
        created_run = client.create_run(
            client.create_experiment(self._experiment)
            if experiment is None
            else experiment.experiment_id,
            run_name=run.run or None,
            tags={name: str(value) for name, value in run.tags.items()},
        )
        self._run = created_run.info.run_id
        param = self._mlflow.entities.Param
        params = [param(k, str(facts[k])) for k in _PARAMETERS]
        client.log_batch(self._run, params=params)
        client.log_text(self._run, run.to_json(), "run.json")

    def write(self, reading: Any) -> None:
        now, metric = int(1000 * time.time()), self._mlflow.entities.Metric
        metrics = [
            metric(_metric_name(name), value, now, reading.step)
            for name, value in self.numbers(reading).items()
        ]
        for start in range(0, len(metrics), _MAX_METRICS):
            batch = metrics[start : start + _MAX_METRICS]
            self._client.log_batch(self._run, metrics=batch)
        if reading.histograms:
            histograms = {
                name: dataclasses.asdict(histogram)
                for name, histogram in reading.histograms.items()
            }
            artifact = f"histograms/{reading.step:09}.json"
            self._client.log_text(self._run, json.dumps(histograms), artifact)

    def interrupt(self) -> None:
        self._status = "KILLED"

    def end(self) -> None:
        if self._user_run is None and self._run is not None:
            run, self._run = self._run, None
            self._client.set_terminated(run, self._status)


def _metric_name(name):
    """Return a name with only the characters that MLflow allows."""
    return re.sub(r"[^\w.\-: /]", "_", name)


class WandB(Tracker):
    """Writes to Weights & Biases, each `fit` a run, or to a run of yours.

    The figures have their names in the logs, those of variables are
    `<instrument>/<path>`; their axis is `update`, the number of the
    optimizer's updates, whatever else is logged to the run. The facts about
    the run are its config. Needs the extra `keras-pergrad[wandb]`.

    Args:
        project: the project of the runs.
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
        if project is not None:
            text("project", project, " or None")
        if run is not None and not callable(getattr(run, "log", None)):
            raise TypeError(
                "`run` expected a run of wandb.init() or None. Received: "
                f"run={run!r}. For a run with this id: WandB(id=..., "
                'resume="allow").'
            )
        self._wandb = import_extra("wandb", "trackers.WandB", "wandb")
        # A run of its own, even where another one is going on.
        self._settings = {"reinit": "create_new", "project": project} | settings
        self._user_run, self._run, self._defined_metrics = run, run, set()
        self._exit_code = 0

    def begin(self, run: Any) -> None:
        self._defined_metrics, self._exit_code = set(), 0
        if self._user_run is None:
            facts = {"name": run.run or None, "config": dataclasses.asdict(run)}
            self._run = self._wandb.init(**(facts | self._settings))

    def write(self, reading: Any) -> None:
        row = self.numbers(reading) | {
            name: self._wandb.Histogram(np_histogram=_join_bins(histogram))
            for name, histogram in reading.histograms.items()
        }
        for name in row.keys() - self._defined_metrics:
            self._run.define_metric(name, step_metric="update")
        self._defined_metrics |= row.keys()
        self._run.log({"update": reading.step, **row})

    def interrupt(self) -> None:
        self._exit_code = 1

    def end(self) -> None:
        if self._user_run is None and self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=self._exit_code)


def _join_bins(histogram):
    """Return counts and edges, bins joined until they are few enough."""
    counts, edges = list(histogram.counts), list(histogram.edges)
    width = -(-len(counts) // _MAX_BINS)
    starts = range(0, len(counts), width)
    joined = [sum(counts[start : start + width]) for start in starts]
    return joined, [edges[start] for start in starts] + edges[-1:]
