"""The records of one `fit`: its run on disk, and its trackers."""

import dataclasses
import os
import time

import keras

from keras_pergrad.common import callback_list
from keras_pergrad.common.arguments import path_text, text
from keras_pergrad.common.running_fit import running_fit
from keras_pergrad.runs.description import describe
from keras_pergrad.runs.recorder import Recorder
from keras_pergrad.runs.records import list_runs, read_info
from keras_pergrad.runs.run_folder import run_path
from keras_pergrad.trackers.tracker import GuardedTrackers

#: Figures of `DataStall` by which runs are compared.
OF_SPEED = "step_ms", "data_stall_fraction"


class FitRecords:
    """The run of a `fit` in `log_dir`, if there is one, and its trackers.

    Args:
        info: the `RunInfo`, with a name.
        recorder: the `Recorder` of the run, or None: only trackers have it.
        sketch: the `GradientSketch`.
        trackers: those of the user.
        say: prints a message.

    Attributes:
        directory: that of the run, or None.
    """

    def __init__(self, info, *, recorder, sketch, trackers, say):
        self._info, self._recorder, self._sketch = info, recorder, sketch
        self._say = say
        self.directory = recorder and recorder.directory
        self._trackers = GuardedTrackers(trackers, say)
        try:
            self._trackers.tell("begin", info)
        except BaseException:  # an interruption: nobody else closes them
            self.close(interrupted=True)
            raise

    def warn_of_other_probe(self, log_dir):
        """Warn before the training that its run cannot be compared."""
        other_run = _last_with_other_probe(log_dir, self._info)
        if other_run is not None:
            self._say(
                "the probe is the first batch of this fit, another one than "
                f"that of the run {other_run!r} in {log_dir!r}: the two "
                "cannot be compared. Give all runs the same probe, such as "
                "GradientVariance(probe=(x[:64], y[:64]))."
            )

    def write(self, reading, gradient):
        """Write a reading of a mean gradient."""

        def append(recorder):
            sketch, variable_sketches = self._sketch(gradient)
            recorder.append(
                reading, variable_sketches=variable_sketches, sketch=sketch
            )

        self._record(append, f"at step {reading.step}")
        self._trackers.tell("write", reading)

    def add_epoch(self, epoch, logs):
        """Write how fast an epoch was, where its logs say so."""
        known = {name: float(logs[name]) for name in OF_SPEED if name in logs}
        if known:
            fields = {"epoch": epoch, **known}
            self._record(lambda r: r.add_epoch(fields), f"in epoch {epoch}")

    def advise(self, advice):
        """Write and pass on what the `fit` advises."""
        lines = [(one.name, one.text) for one in advice]
        self._record(lambda recorder: recorder.advise(lines), "at the end")
        self._trackers.tell("advise", advice)

    def _record(self, write, when):
        """Write to the run's directory; a full disk is said once."""
        if self._recorder is None:
            return
        try:
            write(self._recorder)
        except OSError as error:
            self._recorder.close()
            self._recorder = None
            self._say(
                f"records stopped {when}, since "
                f"{os.path.dirname(self.directory)!r} cannot be written any "
                f"more ({error.strerror}). Training goes on, and so do the "
                "logs."
            )

    def close(self, interrupted=False):
        """Release what is open; may be called again."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()
        self._trackers.close(interrupted)


def begin_records(callback, batch, *, resumes, say):
    """Return the `FitRecords` of a `GradientVariance`.

    `resumes`: whether the `fit` goes on with an earlier one.
    """
    info = describe(
        callback.model,
        batch,
        fit={
            "batch_size": running_fit(callback.model).batch_size,
            "steps_per_epoch": callback.params.get("steps"),
        },
        tags=callback.tags,
        run=callback.run_name or "",
        sketch_size=callback.sketch.size,
    )
    recorder = None
    if callback.log_dir is not None:
        make = Recorder.resume if info.run and resumes else Recorder.start
        name = info.run or _new_run_name(info.seed)
        info = dataclasses.replace(info, run=name)
        recorder = make(callback.log_dir, info)
    return FitRecords(
        info,
        recorder=recorder,
        sketch=callback.sketch,
        trackers=callback.trackers,
        say=say,
    )


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


def _last_with_other_probe(log_dir, info):
    """Return the name of the last other run if its probe is another."""
    for path in reversed(list_runs(log_dir)):
        if os.path.basename(path) != info.run:
            try:
                other = read_info(path)
            except (OSError, ValueError):  # damaged, or being written
                continue
            if other is not None:
                is_same = other["probe"] == info.probe
                return None if is_same else other["run"]
    return None


def require_run_arguments(log_dir, run_name, tags, *, trackers):
    """Refuse a directory, a name or tags that no run can have."""
    if log_dir is not None:
        path_text("log_dir", log_dir, "a directory, such as 'logs'")
    elif not trackers and (run_name is not None or tags):
        raise ValueError(
            "`run_name` and `tags` belong to a run in `log_dir`, or to "
            f"`trackers`. Received: run_name={run_name!r}, tags={tags!r}, "
            "log_dir=None, trackers=()"
        )
    if run_name is not None:
        text("run_name", run_name, " or None")
        if log_dir is not None:  # Trackers make no directory of it.
            run_path(log_dir, run_name)
    if tags is not None and not (
        isinstance(tags, dict)
        and all(
            isinstance(name, str) and isinstance(value, (str, int, float))
            for name, value in tags.items()
        )
    ):
        raise ValueError(
            "`tags` expected a dict of names to strings or numbers, such as "
            f"{{'device': 'cpu'}}. Received: tags={tags!r}"
        )


def _new_run_name(seed):
    """Return a new name that sorts by time and has the seed in it."""
    seed_part = "" if seed is None else f"seed{seed}-"
    return time.strftime("%Y%m%d-%H%M%S-") + seed_part + os.urandom(3).hex()
