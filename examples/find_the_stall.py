"""A model fed by a slow generator: find the stall, follow the advice.

`kpg` prints what is wrong; the second half of this script does what it says,
and measures again.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import time

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import DataStall

BATCHES = 40
LOAD = 0.008  # seconds to load one batch
SPEC = (tf.TensorSpec((None, 512)), tf.TensorSpec((None, 1)))


def load():
    for _ in range(BATCHES):
        time.sleep(LOAD)
        x = np.random.rand(64, 512).astype("float32")
        yield x, x[:, :1]


def generator_fed():
    """As many tutorials show it (TensorFlow's own prefetch kept away)."""
    dataset = tf.data.Dataset.from_generator(load, output_signature=SPEC)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def train(dataset):
    model = keras.Sequential(
        [
            keras.layers.Input((512,)),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    stall = DataStall()
    model.fit(
        dataset.repeat(),
        steps_per_epoch=BATCHES,
        epochs=2,
        verbose=0,
        callbacks=[stall],
    )
    return stall.reports[-1]


def main():
    print("1. The generator alone")
    before = train(generator_fed())
    print("\n2. With the line that the message gives")
    after = train(generator_fed().prefetch(tf.data.AUTOTUNE))
    print("\nWhat it brought, second epoch:")
    for name, report in (("before", before), ("after", after)):
        print(
            f"  {name:<7} waits {report.wait_ms:5.2f} ms a batch, steps take "
            f"{report.step_ms:5.2f} ms, lost {report.data_stall_fraction:.0%}"
        )


if __name__ == "__main__":
    main()
