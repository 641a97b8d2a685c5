"""The parts of `GradientVariance`: steps, advice, and records."""

import math
import os

import keras

from keras_pergrad.common import callback_list
from keras_pergrad.common.callback_list import running_fit
from keras_pergrad.common.names import require_one_of
from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.common.text import reason
from keras_pergrad.gradient_health.fit_record import FitRecorder
from keras_pergrad.gradient_health.judgements import advise
from keras_pergrad.gradient_health.run_log import RunLog, describe
from keras_pergrad.gradient_health.tasks import TaskMeter, add_task_figures
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.trackers.html_page import Page
from keras_pergrad.trackers.tracker import GuardedTrackers

# Measurements of a `fit`, for a curve.
_MIN_MEASUREMENTS = 10


#: What `every` may be instead of a number.
INTERVAL_NAMES = "auto", "epoch"


def parse_every(every):
    """Return `every`, if it is a number of steps or one of the names."""
    if every in INTERVAL_NAMES:
        return every
    try:
        return positive_integer("every", every)
    except ValueError as error:
        raise ValueError(f"{error}. Or 'auto', or 'epoch'.") from None


def steps_between(every, params):
    """Return after how many updates to measure in an epoch, or None.

    `params` are those that Keras gives to callbacks.
    """
    if isinstance(every, int):
        return every
    epochs, steps = params.get("epochs"), params.get("steps")
    # The number of steps of some data sets is not known.
    if every == "epoch" or not epochs or not steps or steps < 1:
        return None
    per_epoch = math.ceil(_MIN_MEASUREMENTS / epochs)  # in an epoch
    return math.ceil(steps / per_epoch) if per_epoch > 1 else None


def is_training_source(source):
    """Return whether `source` is the training batch."""
    advice = " 'probe' is a fixed batch, 'training' those that are trained on."
    require_one_of("source", source, ("probe", "training"), advice=advice)
    return source == "training"


def training_instruments(names, requested, probe, repeats, log_dir, by_task):
    """Return the instruments that the training batch can give."""
    received = None
    if probe is not None:
        received = "a probe, which would not be measured"
    elif repeats != 1:
        received = f"repeats={repeats}, but a step runs once"
    elif by_task:
        received = "by_task=True, which takes a probe apart by its losses"
    elif log_dir is not None:
        received = (
            f"log_dir={log_dir!r}, whose runs are compared on one probe; "
            "kpg.trackers.Page, or another of the `trackers`, shows this one"
        )
    elif requested != "all" and "alpha" in names:
        received = (
            "'alpha', which needs the same batch once more after the update"
        )
    if received is not None:
        raise ValueError(
            "With source='training' measurements are expected of the step "
            f"that trains, and nothing else. Received: {received}. Leave it "
            "out, or measure with source='probe'."
        )
    return tuple(name for name in names if name != "alpha")


def reading_context(model, reader):
    """Return the context in which a reader reads the steps of a model."""
    read = getattr(model, "read_steps", None)
    if read is None:
        raise ValueError(
            "GradientVariance(source='training') expected a PerGradModel with "
            "gradient_mode='vectorized', as PerGradModel.from_model(model) "
            f"makes one. Received: a {type(model).__name__}. Or measure with "
            "source='probe'."
        )
    steps = int(model.steps_per_execution)
    if steps > 1:
        raise ValueError(
            "GradientVariance(source='training') expected "
            "steps_per_execution=1, or the weights around an update cannot be "
            f"seen. Received: steps_per_execution={steps}. Or measure with "
            "source='probe'."
        )
    return read(reader)


class MeasurementHandler:
    """What `GradientVariance` does with each measurement: a base class."""

    def handle(self, epoch, measurement, gradient, reading):
        """Take a `BatchGradient`, its mean gradient and its reading.

        Returns the reading, which a handler may add figures to.
        """
        raise NotImplementedError

    def finish(self):
        """Conclude a `fit` that came to its end."""

    def close(self, interrupted=False):
        """Release what is open."""


class TaskHandler(MeasurementHandler):
    """The conflicts of a model's tasks, measured at each reading."""

    def __init__(self, callback, batch):
        self._callback, self._meter = callback, TaskMeter(callback.model, batch)

    def handle(self, epoch, measurement, gradient, reading):
        with out_of_scope():
            conflicts = self._meter.measure(reading.step)
        self._callback.conflicts.append(conflicts)
        return add_task_figures(reading, conflicts)


class AdviceHandler(MeasurementHandler):
    """Notes what advice needs during a `fit`, and gives it."""

    def __init__(self, callback, batch, say):
        self._callback = callback
        self._say, self._recorder = say, None
        if callback.model.optimizer is None:
            return
        size = running_fit(callback.model).batch_size
        is_trained = callback.probe is None
        self._recorder = self._attempt(
            lambda: FitRecorder(callback.model, batch, size, is_trained)
        )

    def handle(self, epoch, measurement, gradient, reading):
        if self._recorder is not None:
            self._recorder.record_reading(measurement.loss)
        return reading

    def finish(self):
        if self._recorder is None:
            return
        readings, fit_record = self._callback.readings, self._recorder.record
        advice = self._attempt(lambda: advise(readings, fit_record()))
        self._callback.advice = advice or []

    def _attempt(self, function):
        try:
            return function()
        except Exception as error:  # whatever a model may say to a call
            self._say(f"no advice, since {reason(error).rstrip('.')}.")
            return None


class RecordHandler(MeasurementHandler):
    """The records of one `fit`.

    Attributes:
        directory: that of the run, or None: only trackers have it.
    """

    def __init__(self, callback, batch, resumes, say):
        self._callback = callback
        self.log_dir, self._say, self._run = callback.log_dir, say, None
        info = describe(
            callback.model,
            batch,
            {
                "batch_size": running_fit(callback.model).batch_size,
                "steps_per_epoch": callback.params.get("steps"),
            },
            callback.tags,
            callback.run_name or "",
            callback.sketch.size,
        )
        trackers = list(callback.trackers)
        if self.log_dir is not None:
            self._run = run = RunLog(
                self.log_dir, info, resumes, callback.sketch
            )
            info = run.info
            page = os.path.join(run.directory, "index.html")
            trackers.append(
                Page(page, run.earlier_readings() if resumes else ())
            )
        self.directory = self._run and self._run.directory
        self._trackers = GuardedTrackers(trackers, say)
        try:
            self._trackers.begin(info)
        except BaseException:  # an interruption: nobody else closes them
            self.close(interrupted=True)
            raise

    def warn_of_other_probe(self):
        """Warn before the training that its run cannot be compared."""
        other_run = self._run and self._run.last_with_other_probe()
        if other_run is not None:
            self._say(
                "the probe is the first batch of this fit, another one than "
                f"that of the run {other_run!r} in {self.log_dir!r}: the two "
                "cannot be compared. Give all runs the same probe, such as "
                "GradientVariance(probe=(x[:64], y[:64]), ...)."
            )

    def handle(self, epoch, measurement, gradient, reading):
        """Write a measurement; a disk that is full is said once."""
        try:
            if self._run is not None:
                self._run.add(epoch, measurement, gradient, reading)
        except OSError as error:
            self._run.close()
            self._run = None
            self._say(
                f"records stopped at step {reading.step}, since "
                f"{self.log_dir!r} cannot be written any more "
                f"({error.strerror}). Training goes on, and so do the logs."
            )
        self._trackers.write(reading)
        return reading

    def finish(self):
        """Pass on what the `fit` advises."""
        if self._callback.instruments and not self._callback.is_in_training:
            self._trackers.advise(self._callback.advice)

    def close(self, interrupted=False):
        """Release what is open; may be called again."""
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self._trackers.close(interrupted)


def begin_records(callback, batch, epoch, step, say, is_fixed):
    """Return the records of a `fit`, which may resume an earlier run.

    `is_fixed`: the batch does not stem from this `fit`, so it stays the same.
    """
    resumed = is_resumed(callback.model, epoch, step)
    records = RecordHandler(callback, batch, resumed, say)
    if not is_fixed:
        records.warn_of_other_probe()
    return records


def is_resumed(model, epoch, step):
    """Whether this `fit` resumes an earlier run."""
    if epoch > 0:
        return True
    # A backup taken within the first epoch restores the weights only.
    return step > 0 and any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in callback_list.as_callback_list(
            running_fit(model).callback_list
        )
    )


def should_record(model):
    """Whether this worker records: only the chief does."""
    return model.distribute_strategy.extended.should_checkpoint
