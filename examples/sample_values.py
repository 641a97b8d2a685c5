"""What did each sample do to the validation loss, while the model trained?

Flips a tenth of the labels of scikit-learn's handwritten digits, trains a small
network on them, and lets `SampleValues` credit each sample with what it did to
the loss of 200 validation digits. Counts the flipped ones in the lowest
tenth (norms of gradients find more), drops that and trains again. Writes
sample_values.csv and sample_values.png into examples/output/. In less than a
minute.

    python examples/sample_values.py
"""

import pathlib

import keras
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import keras_pergrad as kpg

TRAINED, VALIDATION, FLIPPED, EPOCHS = 1000, 200, 100, 10
OUTPUT = pathlib.Path(__file__).parent / "output"


def make_model():
    """A network of one hidden layer, from the same weights each time."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((64,))
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    outputs = keras.layers.Dense(10, activation="softmax")(hidden)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.1),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        gradient_mode="vectorized",
    )
    return model


def main():
    x, right = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(x))
    x, right = (x[order] / 16).astype("float32"), right[order]
    y = right.copy()
    flipped = rng.choice(TRAINED, FLIPPED, replace=False)
    y[flipped] = (y[flipped] + rng.integers(1, 10, FLIPPED)) % 10

    held_out = slice(TRAINED, TRAINED + VALIDATION)
    rest = slice(TRAINED + VALIDATION, None)
    validation = x[held_out], y[held_out]
    values = kpg.callbacks.SampleValues(validation, order=2)
    model = make_model()
    model.fit(
        x[:TRAINED],
        y[:TRAINED],
        epochs=EPOCHS,
        verbose=0,
        callbacks=[values],
    )
    worst = [i for i, _ in values.top(FLIPPED, helpful=False)]
    found = np.isin(worst, flipped).sum()
    print(f"of the {FLIPPED} lowest values {found} are flipped labels")

    kept = np.setdiff1d(values.ids, worst)
    print(f"accuracy with them: {accuracy(model, x, right, rows=rest):.3f}")
    again = make_model()
    again.fit(x[kept], y[kept], epochs=EPOCHS, verbose=0)
    print(f"accuracy without:   {accuracy(again, x, right, rows=rest):.3f}")

    OUTPUT.mkdir(exist_ok=True)
    values.to_csv(OUTPUT / "sample_values.csv")
    values.plot()
    plt.savefig(OUTPUT / "sample_values.png")
    print(f"written: sample_values.csv and sample_values.png in {OUTPUT}")


def accuracy(model, x, y, *, rows):
    """The accuracy on digits with right labels, not trained on."""
    return model.evaluate(x[rows], y[rows], verbose=0)[1]


if __name__ == "__main__":
    main()
