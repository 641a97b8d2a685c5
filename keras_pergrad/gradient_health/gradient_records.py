"""The parts of `GradientVariance`: steps, advice, and records."""

import math
import os

import keras

from keras_pergrad.common.numbers import positive_integer
from keras_pergrad.common.text import reason
from keras_pergrad.gradient_health.fit_record import FitRecorder
from keras_pergrad.gradient_health.judgements import advise
from keras_pergrad.gradient_health.run_log import RunLog, describe
from keras_pergrad.gradient_health.tasks import TaskMeter, with_tasks
from keras_pergrad.keras_internals.fit import callback_list
from keras_pergrad.keras_internals.fit.callback_list import running_fit
from keras_pergrad.keras_internals.replicas.replicas import out_of_scope
from keras_pergrad.trackers.html_page import Page
from keras_pergrad.trackers.tracker import Guarded

# Measurements of a `fit`, for a curve.
_FEWEST = 10


#: What `every` may be instead of a number.
NAMED = "auto", "epoch"


def checked_every(every):
    """Return `every`, if it is a number of steps or one of the names."""
    if every in NAMED:
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
    measured = math.ceil(_FEWEST / epochs)  # in an epoch
    return math.ceil(steps / measured) if measured > 1 else None


def asked_for(source):
    """Return whether `source` is the training batch."""
    if source not in ("probe", "training"):
        raise ValueError(
            "`source` expected 'probe', a fixed batch, or 'training', the "
            f"batches that are trained on. Received: source={source!r}"
        )
    return source == "training"


def instruments_of(names, given, probe, repeats, log_dir, by_task):
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
    elif given != "all" and "alpha" in names:
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


def read_by(model, reader):
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


class Part:
    """One thing that `GradientVariance` does with its measurements."""

    def measured(self, epoch, measured, gradient, reading):
        """Take a `BatchGradient`, its mean gradient and its reading.

        Returns the reading, which a part may add figures to.
        """
        raise NotImplementedError

    def ended(self):
        """Conclude a `fit` that came to its end."""

    def close(self, interrupted=False):
        """Release what is open."""


class Tasks(Part):
    """The conflicts of a model's tasks, measured at each reading."""

    def __init__(self, watch, batch):
        self._watch, self._meter = watch, TaskMeter(watch.model, batch)

    def measured(self, epoch, measured, gradient, reading):
        with out_of_scope():
            conflicts = self._meter.measure(reading.step)
        self._watch.conflicts.append(conflicts)
        return with_tasks(reading, conflicts)


class GradientAdvice(Part):
    """Notes what advice needs during a `fit`, and gives it."""

    def __init__(self, watch, batch, say):
        self._watch = watch
        self._say, self._recorder = say, None
        if watch.model.optimizer is None:
            return
        size = running_fit(watch.model).batch_size
        self._recorder = self._attempt(
            lambda: FitRecorder(watch.model, batch, size)
        )

    def measured(self, epoch, measured, gradient, reading):
        if self._recorder is not None:
            self._recorder.reading(measured.loss)
        return reading

    def ended(self):
        if self._recorder is None:
            return
        readings, record = self._watch.readings, self._recorder.record
        advice = self._attempt(lambda: advise(readings, record()))
        self._watch.advice = advice or []

    def _attempt(self, function):
        try:
            return function()
        except Exception as error:  # whatever a model may say to a call
            self._say(f"no advice, since {reason(error).rstrip('.')}.")
            return None


class GradientRecords(Part):
    """The records of one `fit`.

    Attributes:
        directory: the run's, or None: only trackers are told.
    """

    def __init__(self, watch, batch, resumes, say):
        self._watch = watch
        self.log_dir, self._say, self._run = watch.log_dir, say, None
        info = describe(
            watch.model,
            batch,
            {
                "batch_size": running_fit(watch.model).batch_size,
                "steps_per_epoch": watch.params.get("steps"),
            },
            watch.tags,
            watch.run_name or "",
            watch.sketch.size,
        )
        trackers = list(watch.trackers)
        if self.log_dir is not None:
            self._run = run = RunLog(self.log_dir, info, resumes, watch.sketch)
            info = run.info
            page = os.path.join(run.directory, "index.html")
            trackers.append(Page(page, run.earlier() if resumes else ()))
        self.directory = self._run and self._run.directory
        self._trackers = Guarded(trackers, say)
        try:
            self._trackers.begin(info)
        except BaseException:  # an interruption: nobody else closes them
            self.close(interrupted=True)
            raise

    def tell_of_another_probe(self):
        """Say before the training that it cannot be compared afterwards."""
        other = self._run and self._run.last_of_another_probe()
        if other is not None:
            self._say(
                "the probe is the first batch of this fit, another one than "
                f"that of the run {other!r} in {self.log_dir!r}: the two "
                "cannot be compared. Give all runs the same probe, such as "
                "GradientVariance(probe=(x[:64], y[:64]), ...)."
            )

    def measured(self, epoch, measured, gradient, reading):
        """Write a measurement; a disk that is full is said once."""
        try:
            if self._run is not None:
                self._run.add(epoch, measured, gradient, reading)
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

    def ended(self):
        """Pass on what the `fit` advises."""
        if self._watch.instruments and not self._watch.is_in_training:
            self._trackers.advise(self._watch.advice)

    def close(self, interrupted=False):
        """Release what is open; may be called again."""
        run, self._run = self._run, None
        if run is not None:
            run.close()
        self._trackers.close(interrupted)


def begun(callback, batch, epoch, step, say, is_own):
    """Return the records of a `fit`, which may go on with a run of before.

    `is_own`: the batch does not stem from this `fit`, so it stays the same.
    """
    resumed = resumes(callback.model, epoch, step)
    records = GradientRecords(callback, batch, resumed, say)
    if not is_own:
        records.tell_of_another_probe()
    return records


def resumes(model, epoch, step):
    """Whether this `fit` goes on with a run of before."""
    if epoch > 0:
        return True
    # A backup taken within the first epoch restores the weights only.
    return step > 0 and any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in callback_list.listed(running_fit(model).callback_list)
    )


def writes(model):
    """Whether this worker records: only the chief does."""
    return model.distribute_strategy.extended.should_checkpoint
