"""Where to normalise: in the `tf.data` pipeline, or in the model?

In the pipeline the work runs beside the step, and shows as a stall when it
is too slow. In the model it is a part of every step. Without an accelerator
both share the same cores, and work beside the step makes the step slower.
This measures both, in turns, so that a machine that gets slower or faster
meets both alike.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import statistics

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import DataStall

ROUNDS = 5
rng = np.random.default_rng(0)
X = rng.integers(0, 256, (2048, 64, 64, 3)).astype("uint8")
Y = rng.integers(0, 10, 2048)


def network(*first):
    model = keras.Sequential(
        [
            keras.layers.Input((64, 64, 3)),
            *first,
            keras.layers.Conv2D(16, 3, strides=4, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    return model


def normalise(x, y):
    x = tf.cast(x, tf.float32)
    return (x - 127.5) / 64.0, y


def main():
    raw = tf.data.Dataset.from_tensor_slices((X, Y)).batch(64)
    in_pipeline = raw.map(normalise, num_parallel_calls=tf.data.AUTOTUNE)
    rescale = keras.layers.Rescaling(1 / 64.0, offset=-127.5 / 64.0)
    places = {
        "pipeline": (network(), in_pipeline.prefetch(2)),
        "model": (network(rescale), raw.prefetch(2)),
    }
    reports = {place: [] for place in places}
    for round_ in range(ROUNDS + 1):
        for place, (model, dataset) in places.items():
            stall = DataStall(warn_above=1)
            # shuffle=False: Keras would warn that a dataset does it itself.
            model.fit(dataset, shuffle=False, verbose=0, callbacks=[stall])
            if round_:  # the first round traces
                reports[place].append(stall.reports[0])
    together = {}
    for place, its in reports.items():
        wait = statistics.median(report.wait_ms for report in its)
        step = statistics.median(report.step_ms for report in its)
        together[place] = wait + step
        print(
            f"normalised in the {place:<9} wait {wait:6.3f} ms, step "
            f"{step:6.3f} ms, together {wait + step:6.3f} ms a batch"
        )
    best = min(together, key=lambda place: together[place])
    print(f"On this machine, with this model: less time in the {best}.")


if __name__ == "__main__":
    main()
