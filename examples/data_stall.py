"""A model fed by a slow generator: find the stall, follow the advice.

The generator sleeps while it "loads", as a disk or a network would make it.
`DataStall` prints what is wrong and what to write; this script then writes
that, first one line and then the other, and measures again.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import time

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import DataStall

BATCHES = 30
LOAD = 0.03  # seconds to load one batch
SPEC = (tf.TensorSpec((None, 512)), tf.TensorSpec((None, 1)))


def load(i):
    time.sleep(LOAD)
    x = np.full((64, 512), i / BATCHES, "float32")
    return x, x[:, :1]


def generator_fed():
    """As many tutorials show it (TensorFlow's own prefetch kept away)."""
    dataset = tf.data.Dataset.from_generator(
        lambda: map(load, range(BATCHES)), output_signature=SPEC
    )
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def parallel_fed():
    """Each batch loaded by its number, several at once."""
    dataset = tf.data.Dataset.range(BATCHES).map(
        lambda i: tf.numpy_function(load, [i], (tf.float32, tf.float32)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return dataset.map(
        lambda x, y: (
            tf.ensure_shape(x, (None, 512)),
            tf.ensure_shape(y, (None, 1)),
        )
    )


def train(dataset, stall):
    model = keras.Sequential(
        [
            keras.layers.Input((512,)),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    # shuffle=False: Keras would warn that a dataset must do that itself.
    model.fit(
        dataset.repeat(),
        steps_per_epoch=BATCHES,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[stall],
    )
    return min(stall.reports[1:], key=lambda report: report.data_stall_s)


def main():
    print("Training from a generator.", flush=True)
    results = {"before": train(generator_fed(), DataStall())}
    prefetched = generator_fed().prefetch(tf.data.AUTOTUNE)
    results["with prefetch"] = train(prefetched, DataStall(warn_above=1))
    both = parallel_fed().prefetch(tf.data.AUTOTUNE)
    results["and a parallel map"] = train(both, DataStall(warn_above=1))
    print("\nWhat following the message brings:")
    for name, report in results.items():
        print(
            f"  {name:<20} waits {report.wait_ms:5.2f} ms a batch, step "
            f"{report.step_ms:5.2f} ms, {report.data_stall_fraction:.0%} lost"
        )


if __name__ == "__main__":
    main()
