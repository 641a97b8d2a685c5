"""What a network looks at: saliency, SmoothGrad and integrated gradients.

Trains a small CNN on handwritten digits and draws, for some of them, which
pixels the score of their class depends on.

    python examples/saliency_map.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib

import keras
import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
SHOWN, DRAWS, STEPS = 8, 32, 32


def train(x, y):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=64, epochs=6, verbose=0).history
    print(f"accuracy {history['accuracy'][-1]:.3f}")
    return model


def gradients(model, points, classes):
    """Of the classes' scores at many points a sample, (points, n, ...)."""
    found = kpg.input_gradients(
        model,
        points.reshape(-1, *points.shape[2:]),
        outputs=np.tile(classes, len(points)),
        verbose=0,
    )
    return found.reshape(points.shape)


def smooth_grad(model, x, classes, *, deviation=0.2):
    """The mean over samples with noise."""
    noise = np.random.default_rng(0).normal(0, deviation, (DRAWS, *x.shape))
    return gradients(model, x + noise.astype(x.dtype), classes).mean(0)


def integrated_gradients(model, x, classes):
    """The mean on the way from a blank image, times that way."""
    shares = (np.arange(STEPS, dtype=x.dtype) + 0.5) / STEPS
    points = shares.reshape(-1, 1, 1, 1, 1) * x
    return x * gradients(model, points, classes).mean(0)


def missing(model, x, classes, *, given):
    """The share of the scores that integrated gradients do not explain."""
    own = np.arange(len(classes)), classes
    scores = model.predict(x, verbose=0)[own]
    scores -= model.predict(np.zeros_like(x), verbose=0)[own]
    return np.abs(given.sum((1, 2, 3)) - scores).max() / np.abs(scores).max()


def draw(maps):
    figure, axes = plt.subplots(len(maps), SHOWN, figsize=(SHOWN, 4.2))
    colours = {"digit": "gray_r", "integrated": "RdBu_r"}
    for row, (name, pictures) in zip(axes, maps.items(), strict=True):
        row[0].set_ylabel(name, fontsize=8)
        for axis, picture in zip(row, pictures, strict=True):
            top = np.abs(picture).max()
            low = -top if name == "integrated" else 0
            colour = colours.get(name, "magma")
            axis.imshow(picture[..., 0], cmap=colour, vmin=low, vmax=top)
            axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "saliency_map.png"
    figure.savefig(path, dpi=120)
    return path


def main():
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)
    model = train(x, y)
    few, classes = x[:SHOWN], y[:SHOWN]
    given = integrated_gradients(model, few, classes)
    share = missing(model, few, classes, given=given)
    print(f"integrated gradients explain all but {share:.1%} of the scores")
    path = draw(
        {
            "digit": few,
            "saliency": np.abs(gradients(model, few[None], classes)[0]),
            "SmoothGrad": np.abs(smooth_grad(model, few, classes)),
            "integrated": given,
        }
    )
    print(f"Picture: {path.relative_to(OUTPUT.parent.parent)}")


if __name__ == "__main__":
    main()
