"""The step of `ByTask` beside the plain step, on models with a shared trunk.

    python -m benchmarks.by_task

Both steps take turns in one process; a row shows medians in milliseconds and
the median of the quotients of neighbours.
"""

import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg

layers = keras.layers
ROUNDS, STEPS = 15, 4


def dense(tasks):
    inputs = keras.Input((256,))
    h = inputs
    for _ in range(4):
        h = layers.Dense(512, "relu")(h)
    return inputs, _heads(h, tasks), (128, 256)


def convolutional(tasks):
    inputs = keras.Input((32, 32, 3))
    h = inputs
    for channels in (16, 32, 32):
        h = layers.Conv2D(channels, 3, padding="same", use_bias=False)(h)
        h = layers.ReLU()(layers.BatchNormalization()(h))
        h = layers.MaxPooling2D()(h)
    return inputs, _heads(layers.Flatten()(h), tasks), (64, 32, 32, 3)


def recurrent(tasks):
    inputs = keras.Input((32, 32))
    return inputs, _heads(layers.LSTM(64)(inputs), tasks), (64, 32, 32)


def attention(tasks):
    inputs = keras.Input((32, 64))
    h = inputs
    for _ in range(2):
        a = layers.MultiHeadAttention(4, 16)(h, h)
        h = layers.LayerNormalization()(h + a)
        a = layers.Dense(64)(layers.Dense(256, "gelu")(h))
        h = layers.LayerNormalization()(h + a)
    h = layers.GlobalAveragePooling1D()(h)
    return inputs, _heads(h, tasks), (32, 32, 64)


def _heads(h, tasks):
    return [layers.Dense(4, name=f"task{k}")(h) for k in range(tasks)]


MODELS = [dense, convolutional, recurrent, attention]


def _step(make, mode, tasks):
    keras.utils.set_random_seed(0)
    inputs, outputs, shape = make(tasks)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile("adam", ["mse"] * tasks, gradient_mode=mode)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=shape), tf.float32)
    y = [
        tf.constant(rng.normal(size=(shape[0], 4)), tf.float32)
        for _ in range(tasks)
    ]
    step = tf.function(model.train_step, autograph=False)
    data = x, y

    def run():
        before = time.perf_counter()
        for _ in range(STEPS):
            logs = step(data)
        float(logs["loss"])
        return (time.perf_counter() - before) / STEPS * 1e3

    run()
    return run


def measure(make, tasks=2):
    """Return the medians of both steps, and of their quotients."""
    plain = _step(make, "batch", tasks)
    ours = _step(make, kpg.ByTask(), tasks)
    pairs = [(plain(), ours()) for _ in range(ROUNDS)]
    plain, ours = (statistics.median(column) for column in zip(*pairs))
    return plain, ours, statistics.median(b / a for a, b in pairs)


def main():
    """Print a table of all models."""
    print("| trunk | tasks | plain, ms | ByTask, ms | quotient |")
    print("|---|---|---|---|---|")
    for make in MODELS:
        for tasks in (2, 4):
            plain, ours, quotient = measure(make, tasks)
            row = f"| {make.__name__} | {tasks} | {plain:.1f} | {ours:.1f} "
            print(f"{row}| {quotient:.2f} |", flush=True)


if __name__ == "__main__":
    main()
