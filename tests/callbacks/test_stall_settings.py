"""DataStall under distribution, and the library's own model."""

import subprocess
import sys

import keras
import pytest

import keras_pergrad as kpg
from keras_pergrad.callbacks import DataStall
from tests.callbacks.stall_truth import Clock, sleeper
from tests.callbacks.test_data_stall import mapped

SCRIPT = """
import tensorflow as tf
import keras
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
import time
import numpy as np
from keras_pergrad.callbacks import DataStall

ready, begun = [], []
STEP = 0.02
SPEC = (tf.TensorSpec((4, 3)), tf.TensorSpec((4, 1)))


def load():
    for _ in range(16):
        begun.append(time.time())
        time.sleep(0.03)
        ready.append(time.time())
        yield np.zeros((4, 3), "float32"), np.zeros((4, 1), "float32")


def data():
    made = tf.data.Dataset.from_generator(load, output_signature=SPEC)
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy.OFF
    options.experimental_distribute.auto_shard_policy = policy
    return made.with_options(options)


def rest(x):
    time.sleep(STEP)
    return x


class Slow(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.numpy_function(rest, [x], x.dtype)]):
            return tf.identity(x)


class Asked(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.asked, self.ended = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.asked.append(time.time())

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(time.time())


with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    model = keras.Sequential(
        [keras.layers.Input((3,)), Slow(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", jit_compile=False)
misses = []
for _ in range(4):
    ready.clear()
    begun.clear()
    stall, clock = DataStall(warn_above=1), Asked()
    model.fit(data(), verbose=0, callbacks=[stall, clock])
    report = stall.reports[0]
    assert report.steps == 16, report
    # Keras read one batch to see the shapes before training began.
    came = ready[-16:]
    least = sum(max(r - a, 0) for r, a in zip(came[1:], clock.asked[1:16]))
    # Each call waits for its batch, and then its step sleeps.
    calls = zip(clock.ended[1:], clock.asked[1:16])
    most = sum(ended - asked - STEP for ended, asked in calls)
    slack = max(0.05 * least, 0.0002 * 15)
    if least - slack <= report.data_stall_s <= most:
        break
    misses.append((report.data_stall_s, least, most))
else:
    raise AssertionError(misses)
print("right")
"""


# Times depend on what else the machine does: `make test-timing`.
@pytest.mark.timing
def test_mirrored_waits_are_true():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.stdout.strip().endswith("right"), run.stderr[-3000:]


@pytest.mark.parametrize(
    "mode", ["batch", "per_sample", "vectorized", "accumulated"]
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
def test_every_gradient_mode_is_timed(mode):
    inputs = keras.layers.Input((3,))
    outputs = keras.layers.Dense(1)(inputs)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile("sgd", "mse", jit_compile=False, gradient_mode=mode)
    stall = DataStall(warn_above=1)
    clock = Clock()
    data = mapped(sleeper(clock, [0.01] * 16))
    model.fit(data, verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 16
    slept = sum(r - b for r, b in zip(clock.ready[1:], clock.begun[1:]))
    assert stall.reports[0].data_stall_s >= slept
    assert stall.reports[0].step_ms > 0
