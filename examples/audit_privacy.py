"""Audit private training: an audit refutes a claim whose noise is missing.

Trains a small network privately on scikit-learn's digits. 300 of them are
canaries: random pixels with a random label, each in the training data with
probability 1/2. `audit_privacy` guesses from the trained network which of them
were used, and turns the number of right guesses into a lower bound for epsilon.
A sound training gives it nothing to go by. In a second training, whose clipping
forgets the noise, the bound is above the claimed epsilon: the claim is refuted.

    python examples/audit_privacy.py

Needs `pip install . --group examples`; about 25 seconds.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_pergrad as kpg

CANARIES, EPOCHS, BATCH_SIZE = 300, 25, 300


class ForgetsNoise(kpg.ClippedMean):
    """Clips as it should, but adds no noise: no log or metric shows it."""

    def finish(self, gradients, n, state=None):
        return gradients


def load_data():
    """Return digits, of which the first `CANARIES` are canaries."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    generator = np.random.default_rng(0)
    x[:CANARIES] = generator.integers(0, 2, (CANARIES, 64))
    y[:CANARIES] = generator.integers(0, 10, CANARIES)
    return x, y


def audit(clipping, x, y, vouched=()):
    private = kpg.PrivateTraining(
        noise_multiplier=8.0,
        delta=1e-5,
        clipping=clipping,
        vouched=vouched,
        samples=len(x),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        user_ids="unique",
        seed=0,  # so that runs can be compared; else leave it out
    )

    def make_model():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((64,))
        hidden = keras.layers.Dense(512, activation="relu")(inputs)
        outputs = keras.layers.Dense(10, activation="softmax")(hidden)
        model = kpg.PerGradModel(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            gradient_mode=private.gradient_mode,
        )
        return model

    return kpg.privacy.audit_privacy(
        make_model,
        private,
        x,
        y,
        canaries=range(CANARIES),
        epochs=EPOCHS,
        seed=0,
    )


def main():
    x, y = load_data()
    print("with noise:", audit(kpg.ClippedMean(1.0), x, y))
    broken = audit(ForgetsNoise(1.0), x, y, vouched=["ForgetsNoise"])
    print("\nwithout noise:", broken)


if __name__ == "__main__":
    main()
