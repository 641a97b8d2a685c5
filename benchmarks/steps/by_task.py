"""The step of `ByTask` beside the plain one, and TorchJD's, on shared trunks.

    make bench-venvs PEERS=torchjd
    python -m benchmarks.steps.by_task [--models dense,recurrent] [--write]

All steps take turns in one run; a row shows medians in milliseconds, and the
medians of the quotients of neighbours. TorchJD's `mtl_backward` with its
`UPGrad` runs with one thread and with two, one gradient at a time and all: the
fastest one counts. With `--write` the rows of these models are replaced between
the marks of benchmarks/results/multitask.md.
"""

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness import tables
from benchmarks.harness.process import THREADS, Worker, WorkerError
from benchmarks.harness.rivals import BY_TASK

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


def _theirs(worker, trunk, tasks):
    """Return the names of TorchJD's steps that run."""
    keys = []
    for rival in (f"{c}@{t}" for c in (0, 1) for t in (1, THREADS)):
        key = f"{trunk} {tasks} {rival}"
        asked = {"rival": rival, "model": trunk, "task": BY_TASK}
        try:
            worker.ask("prepare", key=key, batch=tasks, **asked)
            keys.append(key)
        except WorkerError as error:
            print(f"  TorchJD, {key}: {error}", flush=True)
    return keys


def measure(make, tasks, worker):
    """Return the medians of all steps, and of the quotients to ours."""
    plain = _step(make, "batch", tasks)
    ours = _step(make, kpg.ByTask(), tasks)
    keys = _theirs(worker, make.__name__, tasks)
    rounds = [
        (plain(), ours(), *(worker.ask("time", key=k)["ms"] for k in keys))
        for _ in range(ROUNDS)
    ]
    medians = [statistics.median(column) for column in zip(*rounds)]
    quotient = statistics.median(r[1] / r[0] for r in rounds)
    if not keys:
        return *medians, quotient, None, None
    best = min(range(2, 2 + len(keys)), key=medians.__getitem__)
    share = statistics.median(r[1] / r[best] for r in rounds)
    print(f"  TorchJD's fastest: {keys[best - 2]}", flush=True)
    return *medians[:2], quotient, medians[best], share


HEADER = (
    "| trunk | tasks | plain, ms | ByTask, ms | of plain | TorchJD, ms "
    "| ByTask of TorchJD |\n|---|---|---|---|---|---|---|"
)
PLACE = "multitask.md#tasks"


def main():
    """Print a table of the models."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = {make.__name__: make for make in MODELS}
    parser.add_argument("--models", default=",".join(names))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = []
    for name in given.models.split(","):
        worker = Worker("torchjd")
        try:
            for tasks in (2, 4):
                found = measure(names[name], tasks, worker)
                plain, ours, quotient, theirs, share = found
                row = f"| {name} | {tasks} | {plain:.1f} | {ours:.1f} "
                row += f"| {quotient:.2f} "
                row += (
                    "| – | – |"
                    if theirs is None
                    else (f"| {theirs:.1f} | {share:.2f} |")
                )
                lines.append(row)
                print(row, flush=True)
        finally:
            worker.close()
    if given.write:
        tables.write_rows(PLACE, HEADER, lines, keys=2)


if __name__ == "__main__":
    main()
