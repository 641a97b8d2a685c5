"""What instruments of the training batch cost, beside the clipped step.

`GradientVariance(source="training", instruments="all")`, with histograms, on a
step with `Vectorized(ClippedMean(1.0))`. Steps that are measured and steps
that are not take turns in one `fit`, so that a machine that gets slower or
faster meets both alike; medians of each. A third kind is the step without the
callback. Aim: a `fit` that measures at most 1.1 times the clipped step.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import time

import keras
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.callbacks.gradient_variance_overhead import EPOCH, MEASURED
from benchmarks.harness import tables
from benchmarks.harness.keras_models import build_model, make_loss
from benchmarks.harness.models import make_batch
from keras_pergrad.callbacks import GradientVariance

PLACE = "callbacks.md#training source"
#: What the samples' gradients are gone through for, and who asks for it.
PARTS = {
    "the mean gradient: norm, variance, noise scale": (),
    "and `norm_test`, `cabs`": ("norm_test", "cabs"),
    "and `inner_product_test`, `orthogonality_test`": (
        "inner_product_test",
        "orthogonality_test",
    ),
    "and `snr_by_weight`, `early_stopping`": (
        "snr_by_weight",
        "early_stopping",
    ),
    "and `dead_units`": "dead_units",
    "and `update_ratio`, `distance`, `layers`": (
        "update_ratio",
        "distance",
        "layers",
    ),
    "all, with histograms": "all",
}


class EverySecond(GradientVariance):
    """Measures every second step, without regard to `every`."""

    def _is_due_in_training(self, step):
        return step % 2 == 1


class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds = {False: [], True: []}
        self._last = None

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch > 3:  # the first ones trace
            self.seconds[batch % 2 == 1].append(now - self._last)
        self._last = now


def measuring(instruments):
    """Return the callback with some instruments; "all": and histograms."""
    return EverySecond(
        source="training",
        instruments=instruments or None,
        histograms=instruments == "all",
    )


def by_part(model, dataset, given):
    """Write the table of what parts of a measurement cost, one at a time."""
    lines = [
        f"| {given.model}, batch {given.batch} | clipped step, ms | measured, "
        "ms | times |",
        "|---|---:|---:|---:|",
    ]
    for name, instruments in PARTS.items():
        clock = Clock()
        model.fit(
            dataset,
            steps_per_epoch=given.steps,
            verbose=0,
            callbacks=[measuring(instruments), clock],
        )
        still, measured = (
            statistics.median(clock.seconds[k]) for k in (False, True)
        )
        cells = f"{1e3 * still:.0f} | {1e3 * measured:.0f}"
        lines.append(f"| {name} | {cells} | {measured / still:.2f} |")
        print(lines[-1], flush=True)
    tables.write(PLACE, "\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="by part")
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    x, y = make_batch(given.model, given.batch)
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat()
    model = kpg.PerGradModel.from_model(build_model(given.model))
    mode = kpg.Vectorized(kpg.ClippedMean(1.0))
    model.compile("adam", make_loss(given.model), gradient_mode=mode)
    if given.write:
        by_part(model, dataset, given)
        return
    kinds = {"plain": [], "not measured": [], "measured": []}
    for _ in range(given.rounds):
        watch = measuring("all")
        for callbacks in ([], [watch]):
            clock = Clock()
            model.fit(
                dataset,
                steps_per_epoch=given.steps,
                verbose=0,
                callbacks=[*callbacks, clock],
            )
            if callbacks:
                kinds["not measured"] += clock.seconds[False]
                kinds["measured"] += clock.seconds[True]
            else:
                kinds["plain"] += clock.seconds[False] + clock.seconds[True]
    plain, still, measured = map(statistics.median, kinds.values())
    print(
        f"{given.model}, batch {given.batch}: clipped step {1e3 * plain:.1f} ms"
    )
    print(f"a step that is not measured: {still / plain:.3f} times")
    print(f"a step that is measured: {measured / plain:.3f} times")
    mixed = ((EPOCH - MEASURED) * still + MEASURED * measured) / EPOCH
    print(
        f"{MEASURED} measurements in {EPOCH} steps: {mixed / plain:.3f} times "
        "(aim: at most 1.1)"
    )


if __name__ == "__main__":
    main()
