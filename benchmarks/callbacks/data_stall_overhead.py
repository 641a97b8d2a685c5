"""The cost of DataStall on a step of about 1 ms.

Within one `fit` every other step is timed by it. Each timed step is compared
with the two beside it, so that a machine that gets slower or faster, as
shared ones do, meets both alike. What comes once an epoch, and when the log of
waits is full, stands apart. Aim: below 1 %.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import time

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import DataStall
from keras_pergrad.keras_internals.fit.train_function import fetches_per_call
from keras_pergrad.stalls import wait_log

STEPS, EPOCHS, WARM_UP = 4000, 4, 200


class Clock(keras.callbacks.Callback):
    """Times each step, with the hooks of the callbacks behind it."""

    def on_epoch_begin(self, epoch, logs=None):
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.began)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs = [*getattr(self, "epochs", []), self.seconds]


class EveryOther(DataStall):
    """Times each second step, and itself when it is not in a step."""

    apart_s = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        if batch % 2:
            super().on_train_batch_begin(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        began = time.perf_counter()
        super().on_epoch_end(epoch, logs)
        self.apart_s = time.perf_counter() - began


def main():
    batch = np.zeros((64, 64), "float32"), np.zeros((64, 1), "float32")
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", jit_compile=False)
    clock, stall = Clock(), EveryOther(warn_above=1)
    model.fit(
        dataset,
        steps_per_epoch=STEPS,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[clock, stall],
    )
    # The first epoch traces.
    epochs = 1e6 * np.array(clock.epochs[1:])[:, WARM_UP:]
    plain, timed = epochs[:, ::2], epochs[:, 1::2]
    extra = timed[:, :-1] - (plain[:, :-1] + plain[:, 1:]) / 2
    base, middle = np.median(plain), np.median(extra)
    low, high = np.percentile(extra, [25, 75])
    error = 1.25 * (high - low) / 1.35 / np.sqrt(extra.size)
    steps = wait_log.CAPACITY // fetches_per_call(model)
    print(
        f"plain step {base:.0f} us, DataStall adds {middle:.1f} ± {error:.1f} "
        f"us: {middle / base:.2%} (aim: below 1 %)\n"
        f"and {1e3 * stall.apart_s:.1f} ms at the end of an epoch; of that, "
        f"what empties the log is needed every {steps} steps"
    )


if __name__ == "__main__":
    main()
