"""What DataStall costs on a step of about 1 ms.

Plain and timed epochs take turns, so that a machine that gets slower or
faster meets both alike. Aim: below 1 %.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import DataStall

STEPS, ROUNDS, WARM_UP = 300, 15, 20


class Clock(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == WARM_UP:
            self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.began
        self.step_ms = 1e3 * seconds / (STEPS - WARM_UP)


def epoch_ms(model, dataset, callbacks):
    clock = Clock()
    model.fit(dataset, verbose=0, callbacks=[*callbacks, clock])
    return clock.step_ms


def main():
    batch = np.zeros((64, 64), "float32"), np.zeros((64, 1), "float32")
    dataset = tf.data.Dataset.from_tensors(batch).repeat(STEPS)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", jit_compile=False)
    plain, timed = [], []
    for round_ in range(ROUNDS + 1):
        for times, callbacks in (
            (plain, []),
            (timed, [DataStall(warn_above=1)]),
        ):
            step_ms = epoch_ms(model, dataset, callbacks)
            if round_:  # the first round traces
                times.append(step_ms)
    pairs = [with_ - without for with_, without in zip(timed, plain)]
    base, extra = statistics.median(plain), statistics.median(pairs)
    print(f"plain step {base:.3f} ms, DataStall adds {1e3 * extra:.1f} us")
    print(f"overhead {extra / base:.2%} (aim: below 1 %)")


if __name__ == "__main__":
    main()
