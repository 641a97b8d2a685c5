"""Which training samples made this prediction?

Trains a small network on scikit-learn's handwritten digits, a few of which have
wrong labels, and asks for the training digits that most raised, or lowered, the
log-probability of what the model says of a test digit. No label of the test
digits is needed. One of the predictions is tried: the network is trained again
without the ten digits that raised it most. Writes influence.html into
examples/output/. In less than a minute.

    python examples/influence.py
"""

import pathlib

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_pergrad as kpg

TRAINED, FLIPPED, EPOCHS = 1000, 50, 20
OUTPUT = pathlib.Path(__file__).parent / "output"


def train(x, y):
    """Train a network of one hidden layer, from the same weights each time."""
    keras.utils.set_random_seed(0)
    penalty = keras.regularizers.L2(1e-3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(
                32, activation="relu", kernel_regularizer=penalty
            ),
            keras.layers.Dense(10, kernel_regularizer=penalty),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(x, y, batch_size=100, epochs=EPOCHS, verbose=0)
    return model


def log_probabilities(model, x):
    return np.array(keras.ops.log_softmax(model.predict(x, verbose=0)))


def main():
    x, right = load_digits(return_X_y=True)
    x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)
    x_train, x_test = x[:TRAINED], x[TRAINED:]
    rng = np.random.default_rng(0)
    y = right[:TRAINED].copy()
    flipped = rng.choice(TRAINED, FLIPPED, replace=False)
    y[flipped] = (y[flipped] + rng.integers(1, 10, FLIPPED)) % 10

    model = train(x_train, y)
    log_p = log_probabilities(model, x_test)
    said = log_p.argmax(1)
    unsure = np.argsort(log_p.max(1))[:3]

    influence = kpg.influence.Influence(model, x_train, y, verbose=0)
    best = influence.top(x_test[unsure], k=10, of="prediction")
    worst = influence.top(x_test[unsure], k=10, helpful=False, of="prediction")
    for t, raised, lowered in zip(unsure, best.samples, worst.samples):
        print(
            f"test digit {t} looks like a {said[t]}: raised by digits labelled "
            f"{y[raised].tolist()}, lowered by {y[lowered].tolist()}"
        )

    t, kept = unsure[0], np.delete(np.arange(TRAINED), best.samples[0])
    again = log_probabilities(train(x_train[kept], y[kept]), x_test[t : t + 1])
    print(
        f"log p of the {said[t]}: {log_p[t, said[t]]:.2f} nats with all, "
        f"{again[0, said[t]]:.2f} without the ten that raised it most"
    )

    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "influence.html"
    influence.page(path, x_test[unsure], of="prediction")
    print(f"written: {path}")


if __name__ == "__main__":
    main()
