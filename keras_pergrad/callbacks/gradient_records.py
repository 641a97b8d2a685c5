"""The records of a callback's measurements: a run's files, and trackers."""

import os

import keras

from keras_pergrad.analysis.measurement.run_description import describe
from keras_pergrad.analysis.measurement.run_log import RunLog
from keras_pergrad.keras_internals import callback_list
from keras_pergrad.keras_internals.running_fit import running_fit
from keras_pergrad.trackers.html_page import Page
from keras_pergrad.trackers.tracker import Guarded


class GradientRecords:
    """The records of one `fit`.

    Attributes:
        directory: the run's, or None: only trackers are told.
    """

    def __init__(self, watch, batch, resumes, say):
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

    def add(self, epoch, measured, gradient, reading):
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

    def advise(self, advice):
        """Pass on what the `fit` advises."""
        self._trackers.advise(advice)

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
