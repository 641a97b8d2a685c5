"""A variational autoencoder with a `train_step` of its own, clipped.

The step stays the user's; `compute_gradients` gives it the gradients by the
gradient mode, here with every digit's gradient clipped. `loss_fn` returns one
loss for each sample, and the noise of the codes, which belongs to samples,
comes in by its arguments.

    python examples/vae.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib

import keras
import matplotlib
import numpy as np
from keras import ops

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
CODE = 2
layers = keras.layers


class VAE(kpg.PerGradModel):
    """Digits to codes of two numbers and back."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [layers.Dense(64, activation="relu"), layers.Dense(2 * CODE)]
        )
        self.decoder = keras.Sequential(
            [
                layers.Dense(64, activation="relu"),
                layers.Dense(64, activation="sigmoid"),
            ]
        )

    def call(self, x):
        return self.decoder(self.encoder(x)[:, :CODE])

    def train_step(self, data):
        def loss_fn(batch, y, sample_weight):
            x, noise = batch
            mean, log_variance = ops.split(self.encoder(x), 2, axis=-1)
            code = mean + ops.exp(log_variance / 2) * noise
            missed = ops.sum((self.decoder(code) - x) ** 2, axis=-1)
            spread = mean**2 + ops.exp(log_variance) - 1 - log_variance
            return missed + 0.1 * ops.sum(spread, axis=-1)

        noise = keras.random.normal((ops.shape(data)[0], CODE))
        gradients, logs = self.compute_gradients(
            loss_fn, (data, noise), name="vae"
        )
        self.optimizer.apply(gradients, self.trainable_variables)
        return logs


def draw(model, x, y):
    """The codes of all digits, and digits made from codes."""
    codes = model.encoder.predict(x, verbose=0)[:, :CODE]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    points = left.scatter(*codes.T, c=y, s=6, cmap="tab10")
    figure.colorbar(points, ax=left, label="digit")
    left.set_title("codes")
    low, high = np.quantile(codes, [0.05, 0.95], axis=0)
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 10).T), axis=-1).astype(
        "float32"
    )
    made = model.decoder.predict(grid.reshape(-1, CODE), verbose=0)
    made = np.pad(made.reshape(10, 10, 8, 8)[::-1], [(0, 0)] * 2 + [(1, 1)] * 2)
    right.imshow(made.transpose(0, 2, 1, 3).reshape(100, 100), cmap="gray_r")
    right.set(xticks=[], yticks=[], title="made from codes on a grid")
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "vae.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return path


def main():
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    model = VAE()
    model.compile(
        keras.optimizers.Adam(0.003),
        gradient_mode=kpg.Vectorized(kpg.ClippedMean(10.0)),
    )
    history = model.fit(x, batch_size=64, epochs=25, verbose=0).history
    for epoch in (0, 9, 24):
        print(
            f"epoch {epoch + 1:2}: loss {history['vae_loss'][epoch]:.2f}, "
            f"clipped {history['vae_clipped_fraction'][epoch]:.0%}"
        )
    path = draw(model, x, y)
    print(f"Picture: {path.relative_to(OUTPUT.parent.parent)}")


if __name__ == "__main__":
    main()
