"""Is my gradient the same however it is computed?

Takes one batch of handwritten digits and computes the gradient of a small CNN
and of a small attention model in every way there is: in each gradient mode,
op by op, as a graph and compiled by XLA, on the CPU and on every accelerator,
several times each. All are judged by a loop over single samples in double
precision. Then the same with a layer whose gradient is wrong.

    python examples/check_gradients.py
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import keras_pergrad as kpg

BATCH = 12


def cnn():
    return keras.Sequential(
        [
            keras.Input((8, 8)),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.GroupNormalization(2),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ],
        name="cnn",
    )


def attention():
    """Attention over the eight rows of a digit."""
    rows = keras.Input((8, 8))
    x = layers.Dense(16)(rows)
    x = layers.LayerNormalization()(
        x + layers.MultiHeadAttention(num_heads=2, key_dim=8)(x, x)
    )
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(rows, layers.Dense(10)(x), name="attention")


@tf.custom_gradient
def careless(x):
    """The identity with a gradient that forgets every second sample."""
    keep = tf.cast(tf.range(tf.shape(x)[0]) % 2 == 0, x.dtype)
    return tf.identity(x), lambda dy: dy * keep[:, None]


def broken():
    return keras.Sequential(
        [
            keras.Input((8, 8)),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Lambda(careless),
            layers.Dense(10),
        ],
        name="broken",
    )


def check(model, x, y, **options):
    """Prints the table; returns the answer in words."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    found = kpg.check_gradients(model, x, y, **options)
    print(f"{found}\n")
    return found.answer


def main():
    keras.utils.set_random_seed(0)
    digits = load_digits()
    x = (digits.images[:BATCH] / 16.0).astype(np.float32)
    y = digits.target[:BATCH]
    answers = {
        "cnn": check(cnn(), x, y),
        "attention": check(attention(), x, y),
        "broken": check(broken(), x, y, settings=["graph"]),
    }
    print("Are my gradients consistent?")
    for name, answer in answers.items():
        print(f"  {name}: {answer}")


if __name__ == "__main__":
    main()
