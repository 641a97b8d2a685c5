"""Keras's own loading path, run without training.

A do-nothing model's `evaluate` turns any kind of data into the iterator that
`fit` would use; its test function is ours and takes the batches itself.
"""

import collections.abc
import contextlib
import dataclasses
import math
import time

import keras
import tensorflow as tf

from keras_pergrad.analysis.pipelines.memory import resident_bytes
from keras_pergrad.analysis.pipelines.pipeline_samples import PipelineSamples
from keras_pergrad.analysis.pipelines.stall_accounting import (
    EpochTimer,
    StallReport,
)
from keras_pergrad.analysis.pipelines.stopwatch import Stopwatch
from keras_pergrad.analysis.pipelines.tfdata_model import RunningPipeline
from keras_pergrad.keras_internals import train_function

# Keras annotates `verbose` as a string only.
QUIET: dict = {"verbose": 0}


class _Listener:
    def __init__(self):
        self.timer = EpochTimer(time.time())

    def calls_done(self, calls, rows):
        self.timer.add_calls(calls, rows)

    def rows_lost(self, count):
        self.timer.lost += count

    def call_failed(self):
        pass


@dataclasses.dataclass
class IteratorCall:
    """The function that takes batches from the iterator, again and again.

    Attributes:
        function: called with the iterator.
        model: the model whose function it is, or None.
        batches: how many batches a call takes, unless the data ends.
    """

    function: collections.abc.Callable
    model: keras.Model | None = None
    batches: int = 1


FETCH = IteratorCall(lambda iterator: iterator.get_next())


@dataclasses.dataclass
class Measured:
    """A measured run; `memory` in bytes, worker processes included."""

    report: StallReport
    running: RunningPipeline | None
    memory: int | None = None

    @property
    def batches_per_s(self):
        """At the mean wait and the mean step; None if either is unknown."""
        wait, step = self.report.wait_ms, self.report.step_ms
        if wait is None or step is None or not wait + step > 0:
            return None
        return 1e3 / (wait + step)


def measure(data, batches, step=FETCH, stopwatch=None):
    """Time whole calls of a step, for at least `batches` after the first one.

    Measurements with one `stopwatch` share their traces.
    """
    stopwatch = stopwatch or Stopwatch()
    measured = _run(data, batches, step, stopwatch)
    if step.batches > 1 and measured.report.tracing_s is not None:
        # The call that traced has used up many batches, perhaps all.
        measured = _run(data, batches, step, stopwatch)
    return measured


def _run(data, batches, step, stopwatch):
    measured = [Measured(StallReport(), None)]

    def consume(iterator):
        listener, samples = _Listener(), PipelineSamples()
        stopwatch.listeners.add(listener)
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            for _ in range(math.ceil((batches + 1) / step.batches)):
                stopwatch.call(
                    train_function.TRAIN, step.function, iterator, step.model
                )
                samples.tick(lambda: iterator)
        memory = resident_bytes()
        stopwatch.drain()
        stopwatch.listeners.discard(listener)
        report = listener.timer.report()
        measured.append(Measured(report, samples.summary(iterator), memory))

    _evaluate(data, consume, step.model)
    return measured[-1]


def first_batch(data):
    """Return the first batch of `data` as `fit` would get it."""
    taken = []
    _evaluate(data, lambda iterator: taken.append(next(iterator)))
    return taken[0]


def _evaluate(data, consume, model=None):
    strategy = getattr(model, "distribute_strategy", None)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        taker = train_function.IteratorTaker(consume)
    x, y, weights = data if isinstance(data, tuple) else (data, None, None)
    taker.evaluate(x, y, sample_weight=weights, **QUIET)
