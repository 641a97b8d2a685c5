"""What GradientVariance costs: cifar10, batch 64, epochs of 50 steps.

The callback measures once an epoch with its default repetitions and writes
records. Plain and watched epochs take turns in rounds, so that a machine that
gets slower or faster meets both alike. Aim: below 8 % of the epoch.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import tempfile
import time

import keras
import tensorflow as tf

from benchmarks.models import make_batch
from benchmarks.workers.keras_models import build_model, make_loss
from keras_pergrad.callbacks import GradientVariance

STEPS, BATCH, ROUNDS = 50, 64, 6


class Switched(keras.callbacks.Callback):
    """Lets a callback see every second epoch; times them all."""

    def __init__(self, watched):
        super().__init__()
        self.watched = watched
        self.seconds = {False: [], True: []}

    def on_epoch_begin(self, epoch, logs=None):
        self.on = bool(epoch % 2)
        self.watched.every = "epoch" if self.on else 10**9
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        if epoch > 1:  # the first of each kind traces
            self.seconds[self.on].append(time.perf_counter() - self.began)


def main():
    tf.config.threading.set_intra_op_parallelism_threads(2)
    x, y = make_batch("cifar10", BATCH)
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat(STEPS)
    model = build_model("cifar10")
    model.compile("adam", make_loss("cifar10"))
    with tempfile.TemporaryDirectory() as log_dir:
        watch = GradientVariance(probe=(x, y), log_dir=log_dir)
        clock = Switched(watch)
        # `clock` stands before for the beginning; its end must come after.
        first = keras.callbacks.LambdaCallback(
            on_epoch_begin=clock.on_epoch_begin
        )
        last = keras.callbacks.LambdaCallback(on_epoch_end=clock.on_epoch_end)
        model.fit(
            dataset,
            epochs=2 * ROUNDS + 2,
            verbose=0,
            callbacks=[first, watch, last],
        )
    plain, watched = clock.seconds[False], clock.seconds[True]
    epoch = statistics.median(plain)
    extra = statistics.median(w - p for w, p in zip(watched, plain))
    print(
        f"plain epoch {epoch:.2f} s, GradientVariance adds {1e3 * extra:.0f} ms"
    )
    print(f"overhead {extra / epoch:.1%} (aim: below 8 %)")


if __name__ == "__main__":
    main()
