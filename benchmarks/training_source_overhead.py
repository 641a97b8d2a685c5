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
from benchmarks.models import make_batch
from benchmarks.workers.keras_models import build_model, make_loss
from keras_pergrad.callbacks import GradientVariance

EPOCH, MEASURED = 782, 10


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    x, y = make_batch(given.model, given.batch)
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat()
    model = kpg.PerGradModel.from_model(build_model(given.model))
    mode = kpg.Vectorized(kpg.ClippedMean(1.0))
    model.compile("adam", make_loss(given.model), gradient_mode=mode)
    kinds = {"plain": [], "not measured": [], "measured": []}
    for _ in range(given.rounds):
        watch = EverySecond(
            source="training", instruments="all", histograms=True
        )
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
