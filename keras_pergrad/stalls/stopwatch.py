"""A stopwatch for a model's train and test functions: calls and fetches.

A `TimedIterator` is passed in the place of the real iterator. Up to Keras 3.15,
and with several steps per execution, Keras fetches the batch inside the
compiled train function, so only ops in that function can see the wait: when it
is traced, each of its fetches gets a time stamp before and after. Nothing is
patched; the trace is kept beside the ordinary one and serves every later `fit`
that is timed into the same log. Else Keras fetches the batch itself, and Python
takes the times.

With `steps_per_execution` above one, Keras's loop runs the fetch of the next
batch *beside* the current step. Only what goes beyond the end of that step
is a wait; so the end of the step is noted as well.
"""

import contextlib
import math
import time
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.common.machine import accelerators
from keras_pergrad.keras_internals.data.sources import StandIn, StandInSpec
from keras_pergrad.keras_internals.fit import train_function
from keras_pergrad.keras_internals.graphs.gradients import keep_op
from keras_pergrad.keras_internals.graphs.nodes import (
    is_function,
    outer_graph_of,
)
from keras_pergrad.keras_internals.tensorflow.devices import current_device
from keras_pergrad.stalls.accounting import CALL, Epoch
from keras_pergrad.stalls.wait_log import WaitLog, log_of_key

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
# Reading the processor time of many threads takes 30 us and more, to look for
# the compiled functions 20 us (measured): both are done for each of the first
# calls on an iterator, then at intervals.
SLOW_FIRST_CALLS, SLOW_INTERVAL = 24, 64

STEP_OPS = ("If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall")

_stopwatches = weakref.WeakKeyDictionary()


class Stopwatch:
    """The stopwatch of one model, shared by all callbacks that watch it.

    Attributes:
        listeners: Objects whose method `call_failed()` is called on errors.
        iterators: For each of `SLOTS` a function that returns the iterator
            used last, if any.
        hooks: For each of `SLOTS` what makes the next call a timed one:
            `hooks[slot].arm(model)`.
    """

    def __init__(self):
        self.listeners = weakref.WeakSet()
        self._epochs = weakref.WeakSet()
        self._log = WaitLog()
        self._calls = {slot: [] for slot in train_function.SLOTS}
        self._undrained = 0
        self.iterators = dict.fromkeys(train_function.SLOTS, _no_iterator)
        self._call_count = 0
        self._fetches_per_call = {}  # of a call, for each slot
        self._specs = {}
        self.hooks = {
            slot: train_function.OneCallHook(slot, self.call)
            for slot in train_function.SLOTS
        }
        # For each slot the function called last, and what is compiled in it.
        self._functions, self._compiled = {}, {}

    @staticmethod
    def of(model):
        """Return the one stopwatch of `model`, which is not stored on it."""
        if model not in _stopwatches:
            _stopwatches[model] = Stopwatch()
        return _stopwatches[model]

    def begin_epoch(self, slot):
        """Return an `Epoch` that gets the calls of a function from now on.

        For as long as somebody holds it, at each `drain`.
        """
        epoch = Epoch(slot)
        self._epochs.add(epoch)
        return epoch

    def disarm(self):
        """Put back an armed function that was never called; forget them all."""
        for hook in self.hooks.values():
            hook.restore()
        # They hold the model.
        self._functions, self._compiled = {}, {}

    def call(self, slot, function, iterator, model):
        """Call a train or test function of a model with an iterator; time it.

        The model may be None where a call takes one batch.
        """
        fresh = self.iterators[slot]() is not iterator
        if fresh:
            if not isinstance(iterator, ITERATORS):
                return function(iterator)
            # A weak reference: timing must not keep a pipeline alive.
            self.iterators[slot] = weakref.ref(iterator)
            self._fetches_per_call[slot] = train_function.fetches_per_call(
                model
            )
            self._call_count = 0
        fetches = self._fetches_per_call[slot]
        if self._undrained + fetches > self._log.capacity:
            self._make_room(fetches)
        self._undrained += fetches
        self._call_count += 1
        is_slow = (
            self._call_count <= SLOW_FIRST_CALLS
            or self._call_count % SLOW_INTERVAL == 0
        )
        # A larger log has another key, and so the function is traced again.
        if fresh or self._specs[slot].log_key != self._log.key:
            self._specs[slot] = TimedIteratorSpec(
                tf.type_spec_from_value(iterator),
                self._log.key,
                copy_device(iterator),
            )
        timed_iterator = TimedIterator(iterator, self._specs[slot])
        if is_slow or self._functions.get(slot) is not function:
            self._functions[slot] = function
            self._compiled[slot] = train_function.compiled_functions(function)
        compiled, log = self._compiled[slot], self._log
        traces_before = log.traces + train_function.trace_count(compiled)
        finished = failed = False
        cpu_before = time.process_time() if is_slow else None
        began = time.time()
        try:
            result = function(timed_iterator)
            finished = True
            return result
        except (StopIteration, tf.errors.OutOfRangeError):
            raise  # the data has ended, which is no failure
        except BaseException:
            failed = True
            raise
        finally:
            ended = time.time()
            traces = log.traces + train_function.trace_count(compiled)
            traced = traces > traces_before
            cpu_s = math.nan
            if cpu_before is not None:
                cpu_s = time.process_time() - cpu_before
            # A row of `CALL`, when the log is drained.
            self._calls[slot].append(
                (began, ended, traced, fresh, finished, cpu_s)
            )
            if failed:
                # Reporting must not hide the error that is being raised.
                with contextlib.suppress(Exception):
                    self._report_failure()

    def _make_room(self, fetches):
        self.drain()
        if fetches > self._log.capacity:
            self._log = WaitLog(fetches)

    def _report_failure(self):
        self.drain()
        for listener in list(self.listeners):
            listener.call_failed()

    def drain(self):
        """Pass the measurements on to the epochs."""
        self._undrained = 0
        fetches, lost = self._log.drain()
        for slot, calls in self._calls.items():
            self._calls[slot] = []
            for epoch in self._epochs:
                if epoch.slot == slot and calls and not lost:
                    epoch.add(np.array(calls, CALL), fetches)
        for epoch in self._epochs:
            epoch.lost += lost


def _no_iterator():
    return None


class TimedIterator(StandIn):
    """Stands in for an iterator and logs its fetches."""

    def get_next(self):
        return self._fetch(self.iterator.get_next, lambda batch: True)

    def get_next_as_optional(self):
        return self._fetch(
            self.iterator.get_next_as_optional,
            lambda optional: optional.has_value(),
        )

    def _fetch(self, fetch, had_batch):
        log = log_of_key(self.spec.log_key)
        if tf.executing_eagerly():
            requested = time.time()
            batch = fetch()
            arrived = time.time()
            log.add(requested, arrived, bool(had_batch(batch)))
            return batch
        row = _row_with_step_end(log)
        with tf.device("CPU:0"):
            requested = tf.timestamp()
        with tf.control_dependencies([requested]):
            batch = fetch()
        parts = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies(parts), tf.device("CPU:0"):
            arrived = tf.timestamp()
        log.write_fetch(
            row,
            requested=requested,
            arrived=arrived,
            had_batch=had_batch(batch),
        )
        # The step must not overtake the time stamp on a busy machine.
        with tf.control_dependencies([arrived]):
            batch = tf.nest.map_structure(
                _pass_on, batch, expand_composites=True
            )
        copied = arrival_on_device(batch, self.spec.copy_device)
        if copied is not None:
            log.write_copy_end(row, copied)
        return batch


def _pass_on(part):
    """Return the same tensor on the same device, later."""
    with part.graph.colocate_with(part.op):
        return tf.identity(part)


def _row_with_step_end(log):
    """Take a row, and record the end of a step that runs beside the fetch."""
    # In Keras's loop the fetch is a branch of a condition in the loop's body,
    # and the step is an earlier op of that body.
    graph = tf.compat.v1.get_default_graph()
    while True:
        body = outer_graph_of(graph)
        if not is_function(body):
            return log.next_row()
        steps = [op for op in body.get_operations() if op.type in STEP_OPS]
        if steps:
            break
        graph = body
    with body.as_default():
        row = log.next_row()
        with tf.control_dependencies(steps), tf.device("CPU:0"):
            ended = tf.timestamp()
        log.write_step_end(row, ended)
    return row


class TimedIteratorSpec(StandInSpec):
    """Type of a `TimedIterator`: the iterator's own type, and the log's key.

    It also holds the accelerator to which batches are copied, or None. The log
    is part of the type and captured by the trace: as an argument it would cost
    60 us a call (measured), most of it in comparing types.
    """

    stand_in = TimedIterator

    def __init__(self, iterator_spec, log_key, copy_device):
        super().__init__(iterator_spec, log_key, copy_device)
        self.log_key = log_key
        self.copy_device = copy_device


def accelerator():
    """Return the device that steps run on, such as "GPU:0"; None: the CPU."""
    devices = accelerators()
    return devices[0].name if devices else None


def has_iterators(device):
    """Return whether TensorFlow has iterators for an accelerator."""
    return device is not None and device.startswith("GPU:")


def prefetch_ahead(dataset, device):
    """Return the dataset with batches copied to `device` ahead, or None."""
    if not has_iterators(device):
        return None
    return dataset.apply(tf.data.experimental.prefetch_to_device(device))


def copy_device(iterator):
    """Return the one accelerator that batches must be copied to, or None."""
    if "CPU" in current_device().upper():
        return None
    handles = tf.nest.flatten(iterator, expand_composites=True)
    is_single = isinstance(iterator, tf.data.Iterator)
    if is_single and all(part.device.endswith("CPU:0") for part in handles):
        return accelerator()
    return None


def arrival_on_device(batch, device):
    """Return, in a graph, when a batch is on the accelerator; or None."""
    parts = [
        part
        for part in tf.nest.flatten(batch, expand_composites=True)
        if part.dtype not in (tf.string, tf.variant, tf.resource)
    ]
    if device is None or not parts:
        return None
    # The step takes the same copy: TensorFlow sends a tensor there once.
    with tf.device(device):
        copies = [tf.identity(part) for part in parts]
    for copied in copies:
        # TensorFlow would drop an op that only a time stamp waits for.
        keep_op(copied.op)
    with tf.control_dependencies(copies), tf.device("CPU:0"):
        return tf.timestamp()
