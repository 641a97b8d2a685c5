"""Epochs that last as long as a test says, whatever the machine does.

Training, counting and printing are real; only the durations in the reports,
and what the stages of the pipeline worked, are replaced.
"""

import dataclasses
import itertools

from keras_pergrad.stalls import profile
from keras_pergrad.stalls.accounting import Epoch
from keras_pergrad.stalls.running import PipelineSamples, RunningPipeline


def say(monkeypatch, *epochs, work=None):
    """Let each epoch report the next of some figures, the last one for ever.

    Args:
        monkeypatch: pytest's.
        *epochs: for each, fields of a `StallReport`, and `wait_ms`.
        work: TensorFlow's name of a stage → the seconds that it worked; the
            others did nothing.
    """
    figures = itertools.chain(epochs, itertools.repeat(epochs[-1]))
    measured, summed = Epoch.measure, PipelineSamples.summary

    def measure(epoch):
        counted, timeline = measured(epoch)
        if counted.wait_ms is None:  # no figures for fewer than two batches
            return counted, timeline
        return lasting(counted, **next(figures)), timeline

    def summary(samples, iterator):
        running = summed(samples, iterator)
        return running and worked(running, work)

    monkeypatch.setattr(Epoch, "measure", measure)
    if work is not None:
        monkeypatch.setattr(PipelineSamples, "summary", summary)


def lasting(report, wait_ms, step_ms, **others):
    """The report of as many steps that lasted so long, without bursts."""
    figures = {
        "data_stall_s": 1e-3 * wait_ms * (report.steps - 1),
        "data_stall_fraction": wait_ms / (wait_ms + step_ms),
        "step_ms": step_ms,
        "cpu_ms": None,
        "ready_ms": None,
        "first_batch_s": 1e-3 * wait_ms,
        "wait_p50_ms": wait_ms,
        "wait_longest_ms": wait_ms,
    }
    return dataclasses.replace(report, **{**figures, **others})


def worked(running, seconds):
    """The same stages, with these seconds of work."""
    stages = [
        dataclasses.replace(s, seconds=seconds.get(s.name, 0.0), nested_s=0.0)
        for s in running
    ]
    return RunningPipeline(stages, running.cpu_budget, running.ram_budget)


def say_in_profile(monkeypatch, figures_of, work=None):
    """Let `profile_pipeline` measure the figures that a function tells.

    It gets the data and whether a model takes it; `work` is that of `say`.
    """
    measured = profile.measure

    def measure(data, batches, *, step, stopwatch):
        found = measured(data, batches, step=step, stopwatch=stopwatch)
        if found.report.batches_per_s is not None:
            figures = figures_of(data, step is not profile.FETCH_CALL)
            found.report = lasting(found.report, **figures)
            if work is not None and found.running is not None:
                found.running = worked(found.running, work)
        return found

    monkeypatch.setattr(profile, "measure", measure)
