"""The variance of gradients between samples, repetitions and runs."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.common import callback_list
from keras_pergrad.common.arguments import NamedArguments, positive_integer
from keras_pergrad.common.callback_list import at_end_of_fit
from keras_pergrad.common.running_fit import running_fit
from keras_pergrad.functions.given_batch import as_batch
from keras_pergrad.gradient_health import fit_records
from keras_pergrad.gradient_health import probe_batch as probes
from keras_pergrad.gradient_health.adviser import Adviser
from keras_pergrad.gradient_health.gradient_meter import TrainingReader
from keras_pergrad.gradient_health.health_advice import HealthAdvice
from keras_pergrad.gradient_health.instruments import (
    Instruments,
    require_distinct_names,
    select_instruments,
)
from keras_pergrad.gradient_health.measuring_times import (
    INTERVAL_NAMES,
    is_training_source,
    parse_every,
    reading_context,
    steps_between,
    training_instruments,
)
from keras_pergrad.gradient_health.tasks import (
    TaskConflicts,
    TaskMeter,
    conflict_table,
)
from keras_pergrad.keras_internals.fit.train_function import (
    TrainFunctionWrapper,
)
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.runs.figures import TRAINING
from keras_pergrad.runs.reading import Reading
from keras_pergrad.runs.sketch import GradientSketch
from keras_pergrad.trackers.tracker import checked


class GradientVariance(NamedArguments, keras.callbacks.Callback):
    """Measures how the gradient varies, on one fixed batch: the probe.

    For any compiled model. The measurement changes nothing: a run with this
    callback ends with the same weights, to the bit, as one without.

    | in the logs | is |
    |---|---|
    | `gradient_norm` | ‖ḡ‖, of the probe's mean gradient ḡ |
    | `gradient_variance` | tr Σ, the trace of its samples' covariance |
    | `gradient_noise_scale` | tr Σ / ‖G‖², with ‖G‖² = ‖ḡ‖² − tr Σ / n |
    | `gradient_snr` | ‖G‖² / (tr Σ / n): signal over noise of the batch |
    | `gradient_repeat_deviation` | largest ‖ḡ' − ḡ‖ / ‖ḡ‖ of a repetition |
    | `bitwise_equal_variables` | how many repeat with the same bits |

    All are of gradients without weight regularisers. An undefined value is
    NaN. If the samples have no gradients of their own, as with
    BatchNormalization in training, or these cannot be obtained, the
    within-batch values are absent, and one message says why. Layers act as in
    training; a random layer draws the same numbers in every repetition.

    A `PerGradModel` in a per-sample mode also gives statistics of the training
    batches, without an extra pass. They are in the logs as
    `train_gradient_norm` and so on, even if the mode logs them by itself:
    names without this prefix mean the probe.

    The order of the callbacks does not matter: this one moves before the first
    that reads the logs, such as `CSVLogger` or `TensorBoard`.

    With `log_dir` every measurement is recorded for
    `kpg.diagnose.compare_runs`. Runs can be compared if they have the same
    probe, so pass one.

    Args:
        probe: (x, y) or (x, y, sample_weight), arrays; by default the first
            batch of each `fit`.
        every: "auto", "epoch", or after how many updates to measure. "auto"
            measures at each epoch's end. In a `fit` of fewer than 10 epochs it
            also measures at evenly spread steps between, to give 10
            measurements; with instruments, after the first update, too. An
            epoch's logs show its last measurement.
        repeats: how many times each gradient is computed; by default 3, with
            instruments 1, which leaves `gradient_repeat_deviation` out.
        log_dir: where to write the run; None: logs only.
        run_name: the run's directory in `log_dir`; by default a new name from
            the time and the seed. An existing name is refused, unless `fit`
            resumes that run with `initial_epoch` above 0
            (`keras.callbacks.BackupAndRestore` sets it after a crash).
        tags: a dict of names to strings or numbers, for groups of runs.
        sketch_size: numbers kept of each gradient's direction.
        instruments: "all", or names of instruments of gradient health:
            "norm_test", "inner_product_test", "orthogonality_test", "cabs",
            "noise_scale", "snr_by_weight", "early_stopping", "update_ratio",
            "distance", "alpha", "dead_units", "layers". The page "Gradient
            health" says what each is; the logs have them as
            `gradient_alpha` and so on. None: no more than above.
        source: where to measure: on the "probe", or on the "training" batch
            itself, in the step that trains on it, before its update. It needs
            `Vectorized` on one replica and measures in the first step, then
            every so many; with "auto" and "epoch" in the first step of each
            epoch. No `alpha`, advice or `log_dir` then; update ratios are of
            the update that the batch makes.
        histograms: whether readings have histograms, of the mean gradient by
            variable and of the norms of the samples' gradients.
        by_task: whether to measure how the gradients of the model's losses
            agree on the probe, for a model with several. The logs then have
            `gradient_task_conflicts`, the share of pairs of losses whose
            gradients have a negative cosine over the weights that both use, and
            `gradient_task_cosine_a_b` of each pair. `ByTask` trains by them.
        trackers: the `kpg.trackers` to which each reading is written.

    Attributes:
        readings: one `runs.Reading` per measurement of the last `fit`.
        steps: the number of updates before each measurement.
        advice: with instruments, what the last `fit` advises: a list of
            `callbacks.HealthAdvice`, faults first.
        conflicts: with `by_task`, one `callbacks.TaskConflicts` per measurement
            of the last `fit`; `conflict_table()` says where tasks conflict.
        messages: what was printed.
        run_directory: where the last run was written, or None.

    Raises:
        ValueError: an argument is out of range, or (in `fit`) the probe is not
            a batch of this model, the model has no compiled loss or no
            `call` (`compute_gradients` logs the same of each loss of a GAN,
            with `Vectorized(statistics=True)`), a metric has the name of a
            figure in the logs, or the run to resume does not match.
        FileExistsError: (in `fit`) the run exists already.
        OSError: (in `fit`) `log_dir` cannot be written.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 3))
    >>> watch = kpg.callbacks.GradientVariance(probe=(x, y))
    >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[watch])
    >>> len(history.history["gradient_noise_scale"])
    2
    """

    def __init__(
        self,
        probe: Any = None,
        every: int | Literal["auto", "epoch"] = "auto",
        *,
        repeats: int | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        run_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        sketch_size: int = 1024,
        instruments: str | Sequence[str] | None = None,
        source: Literal["probe", "training"] = "probe",
        histograms: bool = False,
        trackers: Any = (),
        by_task: bool = False,
    ):
        super().__init__()
        every = parse_every(every)
        self.is_in_training: bool = is_training_source(source)
        if repeats is None:
            repeats = 1 if instruments or self.is_in_training else 3
        repeats = positive_integer("repeats", repeats)
        self.by_task: bool = bool(by_task)
        self.trackers: tuple[Any, ...] = (
            checked(trackers) if trackers != () else ()
        )
        fit_records.require_run_arguments(
            log_dir, run_name, tags, trackers=self.trackers
        )
        self.sketch: GradientSketch = GradientSketch(sketch_size)
        self.instruments: tuple[str, ...] = select_instruments(instruments)
        if self.is_in_training:
            self.instruments = training_instruments(
                self.instruments,
                instruments,
                probe=probe,
                repeats=repeats,
                log_dir=log_dir,
                by_task=self.by_task,
            )
        self.histograms: bool = bool(histograms)
        self.readings: list[Reading] = []
        self.advice: list[HealthAdvice] = []
        self.conflicts: list[TaskConflicts] = []
        #: The probe as it was given; None: the first batch of each `fit`.
        self.probe: Any = probe
        self._probe = None if probe is None else as_batch(probe)
        self.every: int | str = every
        self.repeats: int = repeats
        self.log_dir: str | os.PathLike[str] | None = log_dir
        self.run_name: str | None = run_name
        self.tags: Mapping[str, Any] | None = tags
        self.messages: list[str] = []
        self.run_directory: str | None = None
        self._forget_fit()
        self._fit_stack = contextlib.ExitStack()

    @property
    def steps(self) -> list[int]:
        """The number of updates before each measurement."""
        return [reading.step for reading in self.readings]

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        # An interrupted `fit` may have left its contexts open.
        self._fit_stack.close()
        self._fit_stack = contextlib.ExitStack()
        probes.require_one_loss(self.model)
        callbacks = running_fit(self.model).callback_list
        at_end_of_fit(self.model, callbacks, self._fit_stack.close)
        callback_list.go_before_readers(self, callbacks)
        self.messages, self.readings = [], []
        self.advice, self.conflicts = [], []
        self.run_directory = None
        self._forget_fit()
        self._batches_seen = 0
        self._ended = False
        self._interval = steps_between(self.every, self.params)
        watch_gradients = getattr(self.model, "watch_gradients", None)
        if self.is_in_training:
            self._reader = TrainingReader()
            self._fit_stack.enter_context(
                reading_context(self.model, self._reader)
            )
        elif self._probe is None:
            probes.require_one_replica(self.model)
        if watch_gradients is not None and not self.is_in_training:
            self._fit_stack.enter_context(watch_gradients())
        self._train_function = TrainFunctionWrapper(
            self.model, self._train_step, self._fit_stack.close
        )
        self._fit_stack.callback(self._train_function.restore)
        self._fit_stack.callback(self._end_run)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._record_epoch()
        self._epoch = epoch
        if self._instruments is None and self._probe is not None:
            self._begin_measuring(self._probe, epoch)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._batch = batch
        self._train_function.batch_begins()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._batches_seen += 1
        if self._meter is not None and not self.is_in_training:
            step = self._step()
            if self._is_due(step):
                self._measure(step)
        _rename_training_figures(logs)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        measures = self._meter is not None and not self.is_in_training
        if measures and self.every in INTERVAL_NAMES:
            step = self._step()
            if not self.readings or self.readings[-1].step != step:
                self._measure(step)
        if logs is None:
            return
        # Callbacks behind this one write to them, too.
        self._epoch_logs = logs
        _rename_training_figures(logs)
        if self.readings:
            logs.update(self.readings[-1].figures)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._record_epoch()
        if self._adviser is not None:
            self.advice = self._adviser.advise(self.readings)
        if self._records is not None and self._advises():
            self._records.advise(self.advice)
        self._ended = True
        self._fit_stack.close()

    def _train_step(self, function, iterator):
        """Measure on the first batch before the first step, if need be."""
        if self._instruments is None:
            batch, iterator = probes.first_batch(self.model, iterator)
            if batch is not None:
                self._begin_measuring(batch, self._epoch)
        if self.is_in_training:
            return self._train_measured_step(function, iterator)
        weights = self._instruments and self._instruments.weights
        if weights and weights.is_needed and self._may_measure_next():
            with weights.hold():
                return function(iterator)
        return function(iterator)

    def _train_measured_step(self, function, iterator):
        """Take a step, and measure on its batch if that is due."""
        step = self._step()
        self._reader.is_wanted = self._is_due_in_training(step)
        if self._instruments is None or not self._reader.is_wanted:
            return function(iterator)
        result, observation = self._instruments.measure_step(
            lambda: function(iterator), self._reader
        )
        self._note(step, observation)
        return result

    def _is_due_in_training(self, step):
        """Whether to measure in the update after this many."""
        is_first = not self.readings or (
            self._batch == 0 and self.every in INTERVAL_NAMES
        )
        return is_first or self._interval_has_passed(step)

    def _may_measure_next(self):
        """Whether a measurement may follow the next call of the function."""
        updates = int(self.model.steps_per_execution)
        if self._is_due(self._step() + updates):
            return True
        steps = self.params.get("steps")
        is_last = not steps or self._batch + updates >= steps
        return is_last and self.every in INTERVAL_NAMES

    def _is_due(self, step):
        """Whether to measure after this many updates, within an epoch."""
        # What a rate that is far too high does shows in the first update.
        is_first_update = (
            self.every == "auto" and self.instruments and not self.readings
        )
        return bool(is_first_update) or self._interval_has_passed(step)

    def _interval_has_passed(self, step):
        interval = self._interval
        return interval is not None and step - self._last_step >= interval

    def _begin_measuring(self, batch, epoch):
        """Do everything that may fail, before the first training step."""
        # A model that is built by its first call has no variables before.
        if self.is_in_training:
            build_symbolically(self.model, batch)
        else:
            with out_of_scope():
                probes.build(self.model, batch)
        instruments = Instruments(self.instruments, self.model, self.histograms)
        if self._reader is not None:
            self._reader.quantities = instruments.quantities
        else:
            with out_of_scope():
                self._meter = probes.make_meter(
                    self.model, batch, instruments.quantities
                )
                if self.by_task:
                    self._tasks = TaskMeter(self.model, batch)
            self._explain_unmeasured()
        require_distinct_names(self.model, self.instruments)
        self._last_step = step = self._step()
        if self._advises():
            self._adviser = Adviser(self.model, batch, self._say)
        is_recorded = self.log_dir is not None or self.trackers
        # Of several workers only the chief records.
        workers = self.model.distribute_strategy.extended
        if is_recorded and workers.should_checkpoint:
            self._records = fit_records.begin_records(
                self,
                batch,
                resumes=fit_records.is_resumed(self.model, epoch, step),
                say=self._say,
            )
            if self.log_dir is not None and self._probe is None:
                self._records.warn_of_other_probe(self.log_dir)
            self.run_directory = self._records.directory
        self._instruments = instruments

    def _advises(self):
        return bool(self.instruments) and not self.is_in_training

    def _step(self):
        optimizer = self.model.optimizer
        if optimizer is None:
            return self._batches_seen
        return int(tf.convert_to_tensor(optimizer.iterations))

    def _explain_unmeasured(self):
        """Say what of the samples is not measured, and why, once for each."""
        message = probes.unmeasured_message(self._meter, self.instruments)
        if message not in (None, self._explained):
            self._say(message)
        self._explained = message

    def _measure(self, step):
        with out_of_scope():
            observation = self._instruments.measure(self._meter, self.repeats)
        self._explain_unmeasured()
        self._note(step, observation)

    def _note(self, step, observation):
        reading = self._instruments.read(
            observation, step=step, epoch=self._epoch
        )
        if self._tasks is not None:
            with out_of_scope():
                self.conflicts.append(self._tasks.measure(step))
            reading = reading.with_figures(self.conflicts[-1].figures())
        if self._adviser is not None:
            self._adviser.record_reading(reading)
        if self._records is not None:
            self._records.write(reading, observation.gradient)
        self.readings.append(reading)
        self._last_step = step

    def _record_epoch(self):
        """Record the epoch that has ended, once its logs are complete."""
        logs, self._epoch_logs = self._epoch_logs, None
        if logs is not None and self._records is not None:
            self._records.add_epoch(self._epoch, logs)

    def _end_run(self):
        if self._records is not None:
            self._records.close(interrupted=not self._ended)
        self._forget_fit()

    def _forget_fit(self):
        """Drop what belongs to one `fit`."""
        self._meter = self._instruments = self._reader = None
        self._tasks = self._adviser = self._records = None
        self._explained = self._epoch_logs = None

    def conflict_table(self) -> str:
        """Return how often tasks had a negative cosine, by layer, as text."""
        return conflict_table(self.conflicts)

    def _say(self, message):
        message = f"GradientVariance: {message}"
        self.messages.append(message)
        print(f"\n{message}", flush=True)


def _rename_training_figures(logs):
    """Give the training batches' figures in the logs their own names."""
    for figure in TRAINING:
        if logs and figure.name in logs:
            logs[f"train_{figure.name}"] = logs.pop(figure.name)
