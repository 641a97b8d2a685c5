"""How fast is a pipeline, and where to normalise: in it, or in the model?

`profile_pipeline` times the `tf.data` pipeline alone, the model alone and both
together, without training. In the pipeline the work runs beside the step, and
shows as a stall when it is too slow. In the model it is a part of every step.
Without an accelerator both share the same cores, and work beside the step
makes the step slower.

    python examples/profile_pipeline.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg

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
    rates = {}
    for place, (model, dataset) in places.items():
        profile = kpg.diagnose.profile_pipeline(dataset, model)
        rates[place] = profile.together.batches_per_s
        print(f"Normalised in the {place}:\n{profile}\n")
    best = max(rates, key=lambda place: rates[place])
    print(f"On this machine, with this model: more batches in the {best}.")


if __name__ == "__main__":
    main()
