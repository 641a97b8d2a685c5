"""What a timed call costs, and which of the calls have traced."""

import sys

import keras
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import DataStall
from keras_pergrad.keras_internals.fit.train_function import TRAIN
from keras_pergrad.stalls.stopwatch import SLOW_FIRST_CALLS, Stopwatch
from tests.models.making import normal, trained
from tests.stalls.stall_truth import QUIET, batches, small

pytestmark = QUIET


@pytest.mark.quick
def test_a_timed_call_costs_few_calls_of_functions():
    """A search for compiled functions takes hundreds."""
    model, watch, functions = small(), Stopwatch(), []
    model.make_train_function()
    keras_function = model.train_function
    model.train_function = lambda iterator: (keras_function, iterator)
    iterator = iter(batches(-1))

    def step():
        watch.hooks[TRAIN].arm(model)
        model.train_function(iterator)

    def note(frame, event, argument):
        if event in ("call", "c_call"):
            functions.append(getattr(argument, "__name__", frame.f_code))

    for _ in range(SLOW_FIRST_CALLS + 1):
        step()
    profiler = sys.getprofile()
    sys.setprofile(note)
    try:
        for _ in range(10):
            step()
    finally:
        sys.setprofile(profiler)
    assert len(functions) < 10 * 40
    assert "time" in functions
    assert "process_time" not in functions  # it asks the system


class FetchesItself(keras.Model):
    """A model that fetches its batches in Python, as from Keras 3.16 on."""

    def make_train_function(self, force=False):
        step = tf.function(lambda batch: self.train_step(batch))
        self.train_function = lambda iterator: step(next(iterator))


class Reader(kpg.modes.StepReader):
    """Reads once, in a late step; what reads is traced then."""

    calls = 0

    def is_due(self):
        self.calls += 1
        return self.calls == 30

    def read(self, samples):
        return {"dots": samples.dots(samples.mean())}


def test_a_late_trace_is_no_step():
    stall = DataStall(warn_above=1, per_batch=True)
    # The last batch is smaller: its step is traced once more.
    data = tf.data.Dataset.from_tensor_slices((normal(163, 3), normal(163, 1)))
    trained(small(cls=FetchesItself), data.batch(4), callbacks=[stall])
    assert (stall.reports[0].steps, len(stall._timeline)) == (41, 39)
    model = small(cls=kpg.PerGradModel, mode="vectorized")
    with model.read_steps(Reader()):
        trained(model, batches(40), callbacks=[stall])
    assert (stall.reports[0].steps, len(stall._timeline)) == (40, 38)
