"""A stopwatch for the train and test functions of one model, call by call."""

import contextlib
import time
import typing
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.pipelines.timed_iterator import (
    TimedIterator,
    TraceCounter,
    timed_spec,
)
from keras_pergrad.analysis.pipelines.wait_log import WaitLog
from keras_pergrad.keras_internals import train_function

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
# Reading the processor time of many threads takes 30 us and more (measured):
# it is read for each of the first calls on an iterator, then at intervals.
CPU_AT_FIRST, CPU_EVERY = 24, 64

_stopwatches = weakref.WeakKeyDictionary()


class Call(typing.NamedTuple):
    """One call of a train function: begin, end, and what it did."""

    slot: str
    began: float
    ended: float
    traced: bool
    fresh: bool  # the first on this iterator
    finished: bool  # False: no batch was left
    cpu: float | None = None  # seconds of all threads of this process


class Stopwatch:
    """The stopwatch of one model, shared by all callbacks that watch it.

    Listeners have three methods: `calls_done(calls, rows)` gets `Call`s and
    the rows of the `WaitLog` for each; `rows_lost(count)` is called instead if
    some rows were overwritten unread; and `call_failed()`. `iterators` has for
    each of `SLOTS` a function that returns the iterator used last, if any.
    """

    def __init__(self):
        self.listeners = weakref.WeakSet()
        self._log = WaitLog()
        self._calls = []
        self._undrained = 0
        self.iterators = dict.fromkeys(train_function.SLOTS, _gone)
        self._count = 0
        self._fetches = {}  # of a call, for each slot
        self._specs = {}
        self._timed = {}  # for each slot

    @staticmethod
    def of(model):
        """Return the one stopwatch of `model`, which is not stored on it."""
        if model not in _stopwatches:
            _stopwatches[model] = Stopwatch()
        return _stopwatches[model]

    def arm(self, model, slot):
        """Make the next call of `model`'s function a timed one."""
        timed = self._timed.get(slot)
        if timed is None:
            timed = self._timed[slot] = train_function.OneCall(
                model, slot, self.call
            )
        timed.arm(model)

    def disarm(self):
        """Put back an armed function that was never called."""
        for timed in self._timed.values():
            timed.restore()

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
            self._fetches[slot] = train_function.fetches_of_a_call(model)
            self._count = 0
        fetches = self._fetches[slot]
        if self._undrained + fetches > self._log.capacity:
            self._make_room(fetches)
        self._undrained += fetches
        self._count += 1
        asks = self._count <= CPU_AT_FIRST or self._count % CPU_EVERY == 0
        if fresh or self._specs[slot].log_key != self._log.key:
            self._specs[slot] = timed_spec(iterator, self._log)
        timed = TimedIterator(iterator, self._specs[slot])
        traces = TraceCounter.count
        finished = failed = False
        computed = time.process_time() if asks else None
        began = time.time()
        try:
            result = function(timed)
            finished = True
            return result
        except (StopIteration, tf.errors.OutOfRangeError):
            raise
        except BaseException:
            failed = True
            raise
        finally:
            traced = TraceCounter.count > traces
            ended = time.time()
            if computed is not None:
                computed = time.process_time() - computed
            # `drain` makes a `Call` of it later.
            self._calls.append(
                (slot, began, ended, traced, fresh, finished, computed)
            )
            if failed:
                # Reporting must not hide the error that is being raised.
                with contextlib.suppress(Exception):
                    self._tell_of_failure()

    def _make_room(self, fetches):
        self.drain()
        if fetches > self._log.capacity:
            self._log = WaitLog(fetches)

    def _tell_of_failure(self):
        self.drain()
        for listener in list(self.listeners):
            listener.call_failed()

    def drain(self):
        """Pass the measurements to the listeners."""
        calls, self._calls = [Call(*call) for call in self._calls], []
        self._undrained = 0
        rows, lost = self._log.drain()
        if lost:
            for listener in list(self.listeners):
                listener.rows_lost(lost)
            return
        if not calls:
            return
        edges = np.searchsorted(rows[:, 0], [c.began for c in calls])
        rows = np.split(rows, edges)[1:]
        for listener in list(self.listeners):
            listener.calls_done(calls, rows)


def _gone():
    return None
