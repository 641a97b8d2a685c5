"""Running values of what a gradient mode logs, over an epoch."""

import contextlib
import dataclasses
import warnings

import keras
import tensorflow as tf

from keras_pergrad.aggregations.statistics import STATISTICS
from keras_pergrad.common import refusal_messages
from keras_pergrad.keras_internals.fit.train_function import Variant
from keras_pergrad.keras_internals.replicas import replicas


def prefixed(loss, values):
    """Return values by their names in the logs, prefixed by that of a loss."""
    prefix = f"{loss}_" if loss else ""
    return {prefix + name: value for name, value in values.items()}


class Logs:
    """The running values of a mode's statistics, separate from the metrics."""

    def __init__(self, metrics):
        self._metric_classes, self._metrics = {}, {}
        self.add(metrics)
        self._loss_logs = {}
        #: Name → type of the ops differentiated for one sample after another.
        self.one_by_one = {}

    def warn_of_blank_batches(self, model, logs):
        """Warn once if one sample has made all of its batch count as zero."""
        counts = [logs[k] for k in logs if k.endswith("nonfinite_samples")]
        if self.one_by_one and any(map(float, counts)):
            op, op_type = next(iter(self.one_by_one.items()))
            self.one_by_one.clear()
            text = refusal_messages.blank_batches(model, op, op_type)
            warnings.warn(text, stacklevel=2)

    @property
    def names(self):
        """The names of all values."""
        return set(self._metrics)

    def add(self, metrics):
        """Have more values, whose names only a built model tells."""
        for name, metric_class in metrics.items():
            if name not in self._metrics:
                self._metric_classes[name] = metric_class
                with tf.init_scope():
                    self._metrics[name] = metric_class(name=name)

    def of_loss(self, name=None):
        """Return the logs of one of a step's losses, with the loss itself."""
        if name not in self._loss_logs:
            metrics = {"loss": keras.metrics.Mean, **self._metric_classes}
            self._loss_logs[name] = Logs(prefixed(name, metrics))
        return self._loss_logs[name]

    def reset(self):
        """Forget all values, as an epoch begins."""
        for logs in self._loss_logs.values():
            logs.reset()
        for metric in self._metrics.values():
            metric.reset_state()

    def update(self, statistics):
        """Take in a batch's values by name; return those of the epoch."""
        for name, value in statistics.items():
            metric = self._metrics[name]
            # Every replica has the statistics of the whole batch.
            replicas.update(
                metric.variables,
                lambda m=metric, v=value: m.update_state(v),
                whole=True,
            )
        return self.results(statistics)

    def results(self, names):
        """Return the epoch's values of these names."""
        return {name: self._metrics[name].result() for name in names}


@contextlib.contextmanager
def log_statistics(model):
    """Have the mode of a `PerGradModel` log its statistics while open."""
    mode, logs = model._gradient_mode, model._gradient_logs
    options = model.step_options
    if not mode.can_be_watched or options.is_watched:
        yield
        return
    if model._watch_logs is None:
        with replicas.scope_of(model):
            metrics = {**mode.log_metrics, **STATISTICS}
            model._watch_logs = Logs(metrics), Variant()
    watch_logs, variant = model._watch_logs
    model._gradient_logs = watch_logs
    model.step_options = dataclasses.replace(options, is_watched=True)
    variant.use(model)
    try:
        yield
    finally:
        # If it was compiled again, the logs and the options of then stay.
        if model._gradient_logs is watch_logs:
            model._gradient_logs, model.step_options = logs, options
            variant.put_back(model)
