"""Input gradients: a chunk at a time against a Python loop, and their memory.

    python -m benchmarks.input_gradients

Time: the gradient of each sample's own class score on the mnist model,
milliseconds a sample, against `tape.gradient` in a Python loop over samples
(eager, and in a `tf.function`). Memory: the peak of a process that goes
through 10⁴ to 10⁶ rows of 256 features, from a mapped file to a mapped file.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks.machine import describe
from benchmarks.report import table

ROWS = (10_000, 100_000, 1_000_000)
FEATURES = 256
PATH = pathlib.Path(__file__).with_name("input_gradients.json")


def speed(samples=512, looped=64, rounds=5):
    """Milliseconds a sample of each way, medians over rounds in turn."""
    import tensorflow as tf

    import keras_pergrad as kpg
    from benchmarks.models import make_batch
    from benchmarks.workers.keras_models import build_model

    model = build_model("mnist")
    x, y = make_batch("mnist", samples)
    x, y = np.asarray(x, "float32"), np.asarray(y, "int32")

    def one(row, k):
        with tf.GradientTape() as tape:
            tape.watch(row)
            score = model(row, training=False)[0, k]
        return tape.gradient(score, row)

    traced = tf.function(one)
    found = kpg.input_gradients(model, x, outputs=y, verbose=0)

    def loop(function):
        for i in range(looped):
            row = tf.convert_to_tensor(x[i : i + 1])
            gradient = function(row, tf.constant(y[i]))
            np.testing.assert_allclose(gradient[0], found[i], atol=1e-4)

    ways = {
        "tape.gradient in a loop": (lambda: loop(one), looped),
        "the same in a tf.function": (lambda: loop(traced), looped),
        "input_gradients": (
            lambda: kpg.input_gradients(model, x, outputs=y, verbose=0),
            samples,
        ),
    }
    times = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, (run, count) in ways.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append((time.perf_counter() - start) / count)
    return {k: 1e3 * statistics.median(v) for k, v in times.items()}


def peak(rows):
    """MB that a process of its own needs at its peak for so many rows."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __spec__.name, str(rows), folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return json.loads(done.stdout.splitlines()[-1])


def go_through(rows, folder):
    """What the process of `peak` does; prints MB at the start and the peak."""
    import keras

    import keras_pergrad as kpg

    folder = pathlib.Path(folder)
    shape = (rows, FEATURES)
    layers = [keras.Input((FEATURES,)), keras.layers.Dense(64, "tanh")]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", "float32", shape)
    for start in range(0, rows, 10_000):
        x[start : start + 10_000] = np.arange(FEATURES) / FEATURES
        x.flush()
    del x
    x = np.load(folder / "x.npy", mmap_mode="r")
    out = np.lib.format.open_memmap(folder / "out.npy", "w+", "float32", shape)
    warm = np.zeros((1000, FEATURES), "float32")
    kpg.input_gradients(model, warm, outputs=0, verbose=0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    start = time.perf_counter()
    kpg.input_gradients(model, x, outputs=0, out=out, verbose=0)
    seconds = time.perf_counter() - start
    found = {"before": before, "peak": _status("VmHWM"), "seconds": seconds}
    print(json.dumps(found))


def _status(name):
    """A line of Linux's account of this process, in MB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


def main():
    times = speed()
    memory = {rows: peak(rows) for rows in ROWS}
    stored = {
        "machine": describe(["tensorflow"]),
        "ms_a_sample": times,
        "memory_mb": memory,
    }
    PATH.write_text(json.dumps(stored, indent=1) + "\n")
    text = report(stored)
    PATH.with_suffix(".md").write_text(text)
    print(text)


def report(stored):
    """The figures as two Markdown tables."""
    times = stored["ms_a_sample"]
    ours = times["input_gradients"]
    speeds = [
        [name, f"{ms:.3f}", f"{ms / ours:.1f}×"] for name, ms in times.items()
    ]
    sizes = [
        [
            f"{rows:,}",
            f"{2 * 4 * rows * FEATURES / 2**20:.0f}",
            f"{found['before']:.0f}",
            f"{found['peak']:.0f}",
            f"{found['seconds']:.1f}",
        ]
        for rows, found in stored["memory_mb"].items()
    ]
    head = ["rows of 256", "files, MB", "before, MB", "peak, MB", "seconds"]
    return "\n\n".join(
        [
            "# Input gradients",
            f"{stored['machine']['cpu']}, two cores.",
            table(["mnist, own class", "ms a sample", "to ours"], speeds),
            table(head, sizes) + "\n",
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        go_through(int(sys.argv[1]), sys.argv[2])
    else:
        main()
