"""Measured runs of a pipeline: alone, with a model's step, with more workers.

A do-nothing model's `evaluate` turns any kind of data into the iterator that
`fit` would use; its test function is ours and takes the batches itself.
"""

import collections.abc
import contextlib
import copy
import dataclasses
import math
import multiprocessing
import os
import pathlib

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.fit import train_function
from keras_pergrad.keras_internals.fit.train_function import TRAIN
from keras_pergrad.keras_internals.models.parts import patched_attribute
from keras_pergrad.keras_internals.replicas.hooks import bounded_samples
from keras_pergrad.keras_internals.state.model import (
    ModelState,
    preserve_variables,
    variables_in,
)
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.running import PipelineSamples, RunningPipeline
from keras_pergrad.stalls.stopwatch import Stopwatch

# Keras annotates `verbose` as a string only.
QUIET: dict = {"verbose": 0}
STATE_ATTRIBUTE = "gradient_state"
_STATE_HOLDERS = "gradient_mode", "aggregation_state"
THREADS, PROCESSES = "threads", "processes"


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


FETCH_CALL = IteratorCall(lambda iterator: iterator.get_next())


@dataclasses.dataclass
class Measurement:
    """A measured run; `memory` in bytes, worker processes included."""

    report: StallReport
    running: RunningPipeline | None = None
    memory: int | None = None


def measure(data, batches, *, step=FETCH_CALL, stopwatch=None):
    """Time whole calls of a step: `batches` or more after the first batch.

    Measurements with one `stopwatch` share their traces.
    """
    stopwatch = stopwatch or Stopwatch()
    measurement = _measure_once(data, batches, step=step, stopwatch=stopwatch)
    if step.batches > 1 and measurement.report.tracing_s is not None:
        # The call that traced has used up many batches, perhaps all.
        measurement = _measure_once(
            data, batches, step=step, stopwatch=stopwatch
        )
    return measurement


def _measure_once(data, batches, *, step, stopwatch):
    measurements = [Measurement(StallReport())]

    def consume(iterator):
        epoch = stopwatch.begin_epoch(TRAIN)
        samples = PipelineSamples()
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            for call in range(math.ceil((batches + 1) / step.batches)):
                stopwatch.call(TRAIN, step.function, iterator, model=step.model)
                if call + 1 == samples.due:
                    samples.take(iterator)
        memory = _resident_bytes()
        stopwatch.drain()
        report, _ = epoch.measure()
        measurements.append(
            Measurement(report, samples.summary(iterator), memory)
        )

    _evaluate(data, consume, step.model)
    return measurements[-1]


def first_batch(data):
    """Return the first batch of `data` as `fit` would get it."""
    batches = []
    _evaluate(data, lambda iterator: batches.append(next(iterator)))
    return batches[0]


def _evaluate(data, consume, model=None):
    strategy = getattr(model, "distribute_strategy", None)
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        taker = train_function.IteratorTaker(consume)
    x, y, weights = data if isinstance(data, tuple) else (data, None, None)
    taker.evaluate(x, y, sample_weight=weights, **QUIET)


def _resident_bytes():
    """Return the bytes of this process and its children (on Linux)."""
    pids = [os.getpid(), *(c.pid for c in multiprocessing.active_children())]
    sizes = [_proportional_bytes(pid) for pid in pids]
    return None if sizes[0] is None else sum(size or 0 for size in sizes)


def _proportional_bytes(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):  # counts pages that forks share once
            return 1024 * int(line.split()[1])
    return None


@contextlib.contextmanager
def temporary_step(model, batches):
    """Yield a model's `IteratorCall` of at most `batches`; restore the model.

    Restored are its weights and seeds, the optimizer, the sums and the noise
    state of its gradient mode, and Keras's own seed. Metrics are reset.
    """
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    with contextlib.ExitStack() as undo:
        undo.callback(model.reset_metrics)
        undo.enter_context(ModelState(model))
        mode = getattr(model, "gradient_mode", None)
        undo.enter_context(bounded_samples(mode))
        holders = [getattr(model, name, None) for name in _STATE_HOLDERS]
        undo.enter_context(
            preserve_variables(variables_in(holders, _is_not_tensorflow))
        )
        fresh_state = _fresh_state(model)
        steps_before = model.steps_per_execution
        steps = min(steps_before, batches + 1)
        if fresh_state is not None:
            undo.enter_context(
                patched_attribute(model, STATE_ATTRIBUTE, fresh_state)
            )
        undo.enter_context(
            patched_attribute(model, "steps_per_execution", steps)
        )
        # A function that was traced before holds the model's own state.
        anew = fresh_state is not None or steps != steps_before
        function = undo.enter_context(
            train_function.fresh_train_function(model, anew=anew)
        )
        yield IteratorCall(function, model, steps)


def _fresh_state(model):
    """Return a mode's first state: a step can add sums to a later one."""
    if getattr(model, STATE_ATTRIBUTE, None) is None:
        return None
    with model.distribute_strategy.scope():
        return model.gradient_mode.make_state()


def _is_not_tensorflow(value):
    return not type(value).__module__.startswith("tensorflow")


@dataclasses.dataclass
class WorkerTrial:
    """A trial of one number of workers.

    Attributes:
        workers: How many.
        by: "threads" or "processes".
        batches_per_s: None if it failed.
        memory_mib: Memory of the process and its workers, in MiB, or None.
        error: What was raised, or None.
    """

    workers: int
    by: str
    batches_per_s: float | None
    memory_mib: float | None = None
    error: str | None = None


def has_workers(kind):
    """Whether numbers of workers can be tried for data of this kind."""
    return kind in ("pydataset", "dataloader")


def try_workers(data, counts, measure_changed):
    """Return a `WorkerTrial` for each number of workers.

    Keras and PyTorch make the worker processes: where fork is the default of
    `multiprocessing`, by fork.

    Args:
        data: a `PyDataset` or a torch `DataLoader`.
        counts: the numbers of workers, in order.
        measure_changed: measures a copy of the data with such a number.
    """
    has_threads = isinstance(data, keras.utils.PyDataset)
    tries = [(count, THREADS) for count in counts if has_threads or not count]
    # Without workers there is one way to load.
    tries += [(count, PROCESSES) for count in counts if count]
    return [
        _try(data, count, by, measure=measure_changed) for count, by in tries
    ]


def _try(data, count, by, *, measure):
    try:
        measurement = measure(_with_workers(data, count, by))
    except Exception as error:  # whatever a loader raises belongs in its row
        return WorkerTrial(count, by, None, error=type(error).__name__)
    memory = None if measurement.memory is None else measurement.memory / 2**20
    rate = measurement.report.batches_per_s
    return WorkerTrial(count, by, rate, memory_mib=memory)


def _with_workers(data, count, by):
    """Return a copy of the data with so many workers."""
    if isinstance(data, keras.utils.PyDataset):
        changed = copy.copy(data)
        changed.workers = count
        changed.use_multiprocessing = by == PROCESSES
        return changed
    return type(data)(
        data.dataset,
        batch_size=data.batch_size,
        sampler=data.sampler,
        collate_fn=data.collate_fn,
        drop_last=data.drop_last,
        num_workers=count,
    )
