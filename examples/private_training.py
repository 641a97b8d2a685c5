"""What privacy costs: handwritten digits at several budgets, in five ways.

Trains a small network on scikit-learn's digits with epsilon 1, 3 and 8: with
independent noise, with correlated noise, with four augmented views of each
digit, by Adam, and by Adam whose second moments are corrected. It prints how
accurate each is on other digits, beside a training without privacy, and what
is guaranteed, and draws the accuracies.

    python examples/private_training.py

Needs `pip install . --group examples`; about two minutes. `--seeds 3` prints
the means of three trainings each: one seed more or less moves the accuracy by
about as much as the way of training.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import pathlib

import keras
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
BUDGETS = [1.0, 3.0, 8.0]
EPOCHS, BATCH_SIZE = 20, 150
layers = keras.layers


def momentum():
    return keras.optimizers.SGD(0.2, momentum=0.9)


def corrected_adam():
    return kpg.privacy.corrected(keras.optimizers.Adam(0.005))


def small_motions():
    """Moves a digit by up to half a pixel, and turns it by up to 7 degrees."""
    return keras.Sequential(
        [
            layers.RandomTranslation(0.06, 0.06, fill_mode="constant"),
            layers.RandomRotation(0.02, fill_mode="constant"),
        ]
    )


# How each way trains: its optimizer, and what it asks of PrivateTraining.
WAYS = {
    "independent": (momentum, dict),
    "correlated": (momentum, lambda: {"noise": "correlated"}),
    "augmented": (
        momentum,
        lambda: {"augmentations": 4, "augment": small_motions()},
    ),
    "Adam": (lambda: keras.optimizers.Adam(0.02), dict),
    "corrected Adam": (corrected_adam, dict),
}


def make_model(optimizer, gradient_mode, seed):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, activation="tanh")(inputs)
    x = layers.GroupNormalization(4)(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    outputs = layers.Dense(10, activation="softmax")(x)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile(
        optimizer,
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        gradient_mode=gradient_mode,
        jit_compile=False,
    )
    return model


def accuracy(model, test):
    return model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]


def train_privately(way, x, y, *, target_epsilon, seed):
    """Return the trained model, and what is guaranteed of it."""
    make_optimizer, settings = WAYS[way]
    private = kpg.PrivateTraining(
        target_epsilon=target_epsilon,
        delta=1e-4,
        clip_norm=1.0,
        samples=len(x),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        user_ids="unique",
        seed=seed,  # so that runs can be compared; else leave it out
        **settings(),
    )
    model = make_model(make_optimizer(), private.gradient_mode, seed)
    model.fit(
        private.batches(x, y),
        epochs=EPOCHS,
        callbacks=[private.callback],
        verbose=0,
    )
    return model, private.statement(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    seeds = range(1, 1 + parser.parse_args().seeds)
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1).astype("float32") / 16
    x, x_test, y, y_test = train_test_split(x, y, random_state=0)
    test = x_test, y_test
    figure, axes = plt.subplots(figsize=(7, 4))
    print("accuracy on test digits")
    print("epsilon       ", *(f"{budget:7g}" for budget in BUDGETS))
    for way in WAYS:
        means = []
        for budget in BUDGETS:
            found = []
            for seed in seeds:
                model, statement = train_privately(
                    way, x, y, target_epsilon=budget, seed=seed
                )
                found.append(accuracy(model, test))
            means.append(np.mean(found))
        print(f"{way:14}", *(f"{m:7.3f}" for m in means), flush=True)
        axes.plot(BUDGETS, means, marker="o", label=way)
    found = []
    for seed in seeds:
        model = make_model(momentum(), "batch", seed)
        model.fit(x, y, batch_size=BATCH_SIZE, epochs=EPOCHS, verbose=0)
        found.append(accuracy(model, test))
    print(f"{'no privacy':14} {np.mean(found):7.3f}")
    axes.axhline(np.mean(found), label="no privacy", color="gray")
    axes.set(xlabel="epsilon", ylabel="accuracy on test digits", xscale="log")
    axes.set_xticks(BUDGETS, [f"{budget:g}" for budget in BUDGETS])
    axes.legend()
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "private_training.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"\n{statement}\n\nPicture: {path}")


if __name__ == "__main__":
    main()
