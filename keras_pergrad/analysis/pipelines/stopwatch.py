"""A stopwatch for the train and test functions of one model, call by call.

The model's function is replaced just before it is called and put back as the
call begins. So between two calls, whatever happens there (an exception in
another callback, Ctrl-C), the model is as it was.
"""

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

ITERATORS = (tf.data.Iterator, tf.distribute.DistributedIterator)
SLOTS = ("train_function", "test_function")
# Reading the processor time of many threads takes 30 us and more (measured):
# it is read for each of the first calls on an iterator, then at intervals.
CPU_AT_FIRST, CPU_EVERY = 24, 64

_stopwatches = weakref.WeakKeyDictionary()


def fetches_of_a_call(model):
    """Return how often a call of the train function fetches, at most."""
    # Once for each step, rounded up to the unrolled loop, and once more.
    steps = int(getattr(model, "steps_per_execution", 1))
    return steps + int(getattr(model, "unrolled_steps_per_execution", 1)) + 1


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
        self.iterators = dict.fromkeys(SLOTS, _gone)
        self._count = 0
        self._fetches = {}  # of a call, for each slot
        self._specs = {}
        self._armed = None
        self._timed = dict.fromkeys(SLOTS)

    @staticmethod
    def of(model):
        """Return the one stopwatch of `model`, which is not stored on it."""
        if model not in _stopwatches:
            _stopwatches[model] = Stopwatch()
        return _stopwatches[model]

    def arm(self, model, slot):
        """Make the next call of `model`'s function a timed one."""
        function = getattr(model, slot)
        if type(function) is TimedCall:
            return
        armed = self._timed[slot]
        if armed is None:
            armed = self._timed[slot] = TimedCall(self, model, slot)
        armed.function = function
        self._armed = armed
        # Not through Keras's tracking `__setattr__`, which costs more.
        object.__setattr__(model, slot, armed)

    def disarm(self):
        """Put back an armed function that was never called."""
        if self._armed is not None:
            self._armed.restore()
            self._armed = None

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
            self._fetches[slot] = fetches_of_a_call(model)
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


class TimedCall:
    """Stands in for a train function for exactly one call, each time anew."""

    # Only while it is armed: a lasting reference would keep the model alive.
    function = None

    def __init__(self, stopwatch, model, slot):
        self._stopwatch = stopwatch
        self._model = weakref.ref(model)
        self._slot = slot

    def restore(self):
        """Put the train function back, and return it with its model."""
        function, self.function = self.function, None
        model = self._model()
        if model is not None and getattr(model, self._slot) is self:
            object.__setattr__(model, self._slot, function)
        return function, model

    def __call__(self, iterator):
        function, model = self.restore()
        return self._stopwatch.call(self._slot, function, iterator, model)
