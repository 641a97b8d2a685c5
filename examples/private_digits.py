"""What privacy costs: handwritten digits at several budgets.

Trains a small network on scikit-learn's digits with epsilon 1, 3 and 8 and
without privacy, prints what is guaranteed, and draws how accurate each is.

    python examples/private_digits.py

Needs `pip install ".[privacy,examples]"`; about a minute.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pathlib

import keras
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
BUDGETS = [1.0, 3.0, 8.0]
EPOCHS, BATCH_SIZE = 20, 150


def make_model(gradient_mode):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, activation="tanh")(inputs)
    x = layers.GroupNormalization(4)(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    outputs = layers.Dense(10, activation="softmax")(x)
    model = kpg.PerGradModel(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        gradient_mode=gradient_mode,
    )
    return model


def train_privately(x, y, test, target_epsilon):
    """The accuracy on the test data after each epoch, and the statement."""
    private = kpg.PrivateTraining(
        target_epsilon=target_epsilon,
        delta=1e-4,
        clip_norm=1.0,
        samples=len(x),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        user_ids="unique",
    )
    model = make_model(private.gradient_mode)
    history = model.fit(
        private.batches(x, y),
        epochs=EPOCHS,
        validation_data=test,
        callbacks=[private.callback],
        verbose=0,
    )
    return history.history, private.statement()


def main():
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1).astype("float32") / 16
    x, x_test, y, y_test = train_test_split(x, y, random_state=0)
    test = x_test, y_test
    figure, axes = plt.subplots(figsize=(7, 4))
    print("epsilon   accuracy on test digits")
    for budget in BUDGETS:
        history, statement = train_privately(x, y, test, budget)
        accuracy = history["val_accuracy"]
        print(f"{statement['epsilon']:7.3f}   {accuracy[-1]:.3f}")
        axes.plot(accuracy, label=f"epsilon = {budget:g}")
    model = make_model("batch")
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        validation_data=test,
        verbose=0,
    ).history
    print(f"   none   {history['val_accuracy'][-1]:.3f}")
    axes.plot(history["val_accuracy"], label="without privacy", color="gray")
    axes.set(xlabel="epoch", ylabel="accuracy on test digits", ylim=(0, 1))
    axes.legend()
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "private_digits.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"\n{statement}\n\nPicture: {path}")


if __name__ == "__main__":
    main()
