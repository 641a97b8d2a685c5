"""Loaders and steps with clocks of their own: the truth for stall tests."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models.making import compiled, net

#: Of what Keras warns on its own: unknown lengths and kinds of data.
QUIET = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:data `x` was provided as a grain"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
SPEC = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
BATCH = (np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32))


class Clock(keras.callbacks.Callback):
    """When each batch was begun and ready, asked for, and each step ended.

    It is a callback only to see when the training loop turns to the next
    call of the train function, which takes some time of its own after the
    last step.
    """

    def __init__(self):
        super().__init__()
        self.begun = []
        self.ready = []
        self.asked = {}
        self.step_begins = []
        self.step_ends = []

    def on_train_batch_begin(self, batch, logs=None):
        self.asked[len(self.step_ends)] = time.time()

    on_test_batch_begin = on_train_batch_begin

    def bounds(self, skip=0):
        """Least and greatest sum of the true waits after the first step.

        Step k was free to begin when step k - 1 had ended and the loop had
        turned to it. It waited at least until the loader had its batch (a
        loader that only begins when asked cannot have been waited for
        before), and at most until the step had begun: between the two lies
        TensorFlow's handing over of the batch.

        Args:
            skip: Batches that were loaded before training began.
        """
        least = most = 0.0
        for k in range(1, len(self.step_ends)):
            free = max(self.step_ends[k - 1], self.asked.get(k, 0.0))
            begun = max(free, self.begun[k + skip])
            least += max(self.ready[k + skip] - begun, 0.0)
            most += max(self.step_begins[k] - free, 0.0)
        return least, most


def sleeper(clock, seconds):
    """A function that sleeps `seconds[i]` before batch i and notes it."""

    def load(i):
        clock.begun.append(time.time())
        if seconds[i]:
            time.sleep(seconds[i])
        clock.ready.append(time.time())
        return BATCH

    return load


class TimedStepModel(keras.Model):
    """A model whose step sleeps, and notes its begin and end."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.stall_clock = clock
        self.seconds = seconds

    def call(self, x):
        return self.dense(x)

    def _rest(self, loss):
        if self.seconds:
            time.sleep(self.seconds)
        self.stall_clock.step_ends.append(time.time())
        return loss

    def _finish(self, logs):
        """The end of the step: sleeps once its results are there."""
        loss = logs["loss"]
        if tf.executing_eagerly():
            self._rest(loss)
            return logs
        with tf.control_dependencies(tf.nest.flatten(logs)):
            rest = tf.numpy_function(self._rest, [loss], tf.float32)
        return {**logs, "loss": tf.ensure_shape(rest, [])}

    def _begin(self, data):
        x, y = data

        def note(x):
            self.stall_clock.step_begins.append(time.time())
            return x

        if tf.executing_eagerly():
            return note(x), y
        noted = tf.numpy_function(note, [x], tf.float32)
        return tf.ensure_shape(noted, x.shape), y

    def train_step(self, data):
        return self._finish(super().train_step(self._begin(data)))

    def test_step(self, data):
        return self._finish(super().test_step(self._begin(data)))


def timed(step=0.0, clock=None, optimizer="sgd", *, built=False, **settings):
    """A compiled model whose step sleeps for `step` seconds."""
    model = TimedStepModel(clock or Clock(), step)
    model.compile(optimizer, "mse", **{"jit_compile": False, **settings})
    if built:
        model(BATCH[0])
    return model


def small(*parts, cls=keras.Model, **settings):
    """A compiled model for the same batches, without a clock."""
    model = net(*parts, shape=(3,), units=1, cls=cls)
    return compiled(model, **{"jit_compile": False, **settings})


def batches(n):
    """So many equal batches; -1: without end."""
    return tf.data.Dataset.from_tensors(BATCH).repeat(n)


def of_generator(load, count):
    """A dataset of what a function gives for each number."""
    return tf.data.Dataset.from_generator(
        lambda: map(load, range(count)), output_signature=SPEC
    )


def no_hidden_prefetch(dataset):
    """TensorFlow adds parallelism of its own; tests want the plain case."""
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


class Loader(keras.utils.PyDataset):
    """A PyDataset that sleeps."""

    def __init__(self, load, batches, **settings):
        super().__init__(**settings)
        self.load = load
        self.batches = batches

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        return self.load(index)
