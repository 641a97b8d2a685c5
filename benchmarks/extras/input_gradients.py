"""Input gradients: a chunk at a time against a Python loop.

    python -m benchmarks.extras.input_gradients

Time: the gradient of each sample's own class score on the mnist model,
milliseconds a sample, against `tape.gradient` in a Python loop over samples
(eager, and in a `tf.function`).
"""

import json
import statistics
import time

import numpy as np

from benchmarks.harness.machine import describe
from benchmarks.harness.process import RESULTS
from benchmarks.harness.tables import table

PATH = RESULTS / "input_gradients.json"


def speed(samples=512, looped=64, rounds=5):
    """Milliseconds a sample of each way, medians over rounds in turn."""
    import tensorflow as tf

    import keras_pergrad as kpg
    from benchmarks.harness.keras_models import build_model
    from benchmarks.harness.models import make_batch

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


def main():
    times = speed()
    stored = {
        "machine": describe(["tensorflow"]),
        "ms_a_sample": times,
    }
    PATH.write_text(json.dumps(stored, indent=1) + "\n")
    ours = times["input_gradients"]
    speeds = [
        [name, f"{ms:.3f}", f"{ms / ours:.1f}×"] for name, ms in times.items()
    ]
    print(table(["mnist, own class", "ms a sample", "to ours"], speeds))


if __name__ == "__main__":
    main()
