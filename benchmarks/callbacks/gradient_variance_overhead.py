"""What GradientVariance costs: cifar10, batch 64, epochs of 50 steps.

The callback measures once an epoch with its default repetitions and writes
records. Plain and watched epochs take turns, so that a machine that gets
slower or faster meets both alike. Aim: below 8 % of the epoch.

With `--instruments` it has all instruments of gradient health and histograms,
and its default repetitions: with instruments, each gradient is computed once.
What ten such measurements add to an epoch of CIFAR-10, of 782 steps, is told
as well, with the same aim.

Two figures. What is added between the last batch of an epoch and the third of
the next, so with what the measurement leaves cold in the caches, is a few
hundred milliseconds and stands out. Whole epochs differ among themselves by
nearly as much; their difference is the check that nothing was left out.

The data have no end: for data that end, Keras makes a new iterator for each
epoch, which here took 0 or 350 ms, at random.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import tempfile
import time

import keras
import tensorflow as tf

from benchmarks.harness.keras_models import build_model, make_loss
from benchmarks.harness.models import make_batch
from benchmarks.harness.turns import added
from keras_pergrad.callbacks import GradientVariance

STEPS, BATCH, ROUNDS, AFTER = 50, 64, 8, 3
# Of 50,000 samples, and how many are watched.
EPOCH, MEASURED = 782, 10


class Switched(keras.callbacks.Callback):
    """Lets a callback see every second epoch, and times all of them.

    Attributes:
        gaps: seconds from the last batch of an epoch to the end of batch
            `AFTER` of the next, of epochs {not watched, watched}.
        epochs: the seconds of the epochs up to the same batch.
    """

    def __init__(self, watched):
        super().__init__()
        self.watched = watched
        self.gaps = {False: [], True: []}
        self.epochs = {False: [], True: []}
        self._last = self._began = None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self.watched.every = "epoch" if epoch % 2 else 10**9

    def on_epoch_end(self, epoch, logs=None):
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        if batch == AFTER - 1:
            before = self._epoch - 1
            if before > 1:  # the first of each kind traces
                watched = bool(before % 2)
                self.gaps[watched].append(now - self._last)
                self.epochs[watched].append(now - self._began)
            self._began = now


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--instruments", action="store_true")
    parser.add_argument("--model", default="cifar10")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    more = {"instruments": "all", "histograms": True}
    tf.config.threading.set_intra_op_parallelism_threads(2)
    x, y = make_batch(given.model, BATCH)
    dataset = tf.data.Dataset.from_tensors((x, y)).repeat()
    model = build_model(given.model)
    model.compile("adam", make_loss(given.model))
    with tempfile.TemporaryDirectory() as log_dir:
        watch = GradientVariance(
            probe=(x, y), log_dir=log_dir, **(more if given.instruments else {})
        )
        clock = Switched(watch)
        model.fit(
            dataset,
            epochs=2 * given.rounds + 3,
            steps_per_epoch=given.steps,
            verbose=0,
            callbacks=[clock, watch],  # in this order: it ends an epoch
        )
    epoch = statistics.median(clock.epochs[False])
    gap = added(clock.gaps[True], clock.gaps[False])
    whole = added(clock.epochs[True], clock.epochs[False])
    print(f"{given.model}: plain epoch {epoch:.2f} s")
    print(
        f"GradientVariance adds {1e3 * gap:.0f} ms between epochs: "
        f"{gap / epoch:.1%} (aim: below 8 %)"
    )
    print(f"whole epochs differ by {1e3 * whole:.0f} ms: {whole / epoch:.1%}")
    if given.instruments:
        share = MEASURED * gap / (EPOCH * epoch / given.steps)
        print(
            f"{MEASURED} measurements add {share:.1%} to an epoch of {EPOCH} "
            "steps (aim: below 8 %)"
        )


if __name__ == "__main__":
    main()
