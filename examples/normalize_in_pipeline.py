"""Where to normalise: in the `tf.data` pipeline, or in the model?

In the pipeline the work runs beside the step, and shows as a stall when it
is too slow. In the model it is a part of every step. This measures both.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.callbacks import DataStall

rng = np.random.default_rng(0)
X = rng.integers(0, 256, (2048, 32, 32, 3)).astype("uint8")
Y = rng.integers(0, 10, 2048)


def network(*first):
    model = keras.Sequential(
        [
            keras.layers.Input((32, 32, 3)),
            *first,
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
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


def measure(model, dataset):
    stall = DataStall(warn_above=1)
    model.fit(dataset, epochs=2, verbose=0, callbacks=[stall])
    return stall.reports[-1]


def main():
    raw = tf.data.Dataset.from_tensor_slices((X, Y)).batch(64)
    in_pipeline = raw.map(normalise, num_parallel_calls=tf.data.AUTOTUNE)
    rescale = keras.layers.Rescaling(1 / 64.0, offset=-127.5 / 64.0)
    results = {
        "pipeline": measure(network(), in_pipeline.prefetch(2)),
        "model": measure(network(rescale), raw.prefetch(2)),
    }
    for place, report in results.items():
        print(
            f"normalised in the {place:<9} wait {report.wait_ms:6.3f} ms, "
            f"step {report.step_ms:6.3f} ms a batch"
        )


if __name__ == "__main__":
    main()
