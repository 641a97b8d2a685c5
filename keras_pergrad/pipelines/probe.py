"""Runs data through Keras's own loading path without training.

A do-nothing model's `evaluate` turns any kind of data into the iterator that
`fit` would use; its test function is ours and takes the batches itself.
"""

import contextlib
import time

import keras
import tensorflow as tf

from keras_pergrad.pipelines.account import Account
from keras_pergrad.pipelines.stopwatch import SLOTS, Stopwatch
from keras_pergrad.pipelines.tf_model import running_stages

# Keras annotates `verbose` as a string only.
QUIET: dict = {"verbose": 0}


class _Probe(keras.Model):
    def __init__(self, consume):
        super().__init__()
        self._consume = consume
        self.compile()

    def make_test_function(self, force=False):
        def test_function(iterator):
            self._consume(iterator)
            self.stop_evaluating = True
            return {}

        self.test_function = test_function


class _Listener:
    def __init__(self):
        self.account = Account(time.time())

    def calls_done(self, calls, rows):
        self.account.add_calls(calls, rows)

    def call_failed(self):
        pass


class Measured:
    """`report`, `batches_per_s`, `running` stages and the `first` batch."""

    def __init__(self):
        self.report = None
        self.batches_per_s = None
        self.running = None


def measure(data, batches, function=None, strategy=None):
    """Times `batches` batches after the first one.

    Args:
        data: What `fit` takes as `x`, or a tuple of arrays.
        batches: Number of batches.
        function: Called with the iterator for each step; by default the
            batches are only fetched.
        strategy: The model's `tf.distribute` strategy.
    """
    result = Measured()

    def consume(iterator):
        listener = _Listener()
        stopwatch = Stopwatch()
        stopwatch.listeners.add(listener)
        step = function or (lambda it: it.get_next())
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            for done in range(batches + 1):
                stopwatch.call(SLOTS[0], step, iterator)
                if done % 100 == 0:
                    stopwatch.drain()
        stopwatch.drain()
        account = listener.account
        result.report = account.report()
        steady = (account.steady_to or 0) - (account.steady_from or 0)
        steady -= account.not_steady
        if account.waits and steady > 0:
            result.batches_per_s = account.waits / steady
        result.running = running_stages(iterator)

    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        probe = _Probe(consume)
    x, y, weights = data if isinstance(data, tuple) else (data, None, None)
    probe.evaluate(x, y, sample_weight=weights, **QUIET)
    return result


def first_batch(data):
    """One batch of `data` as `fit` would get it."""
    taken = []
    probe = _Probe(lambda iterator: taken.append(next(iterator)))
    x, y, weights = data if isinstance(data, tuple) else (data, None, None)
    probe.evaluate(x, y, sample_weight=weights, **QUIET)
    return taken[0]
