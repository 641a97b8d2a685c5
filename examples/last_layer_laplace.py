"""Last-layer Laplace: less sure of noise than of digits.

The posterior of the last kernel is taken as a Gaussian. Its covariance comes
from the Kronecker factors of the Fisher information, (n A ⊗ B + prior)⁻¹, in
their eigenbases. The probit approximation makes probabilities of it.

    python examples/last_layer_laplace.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_pergrad as kpg

PRIOR = 1.0


def main():
    keras.utils.set_random_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    inputs = keras.Input((64,))
    features = keras.layers.Dense(32, activation="relu")(inputs)
    logits = keras.layers.Dense(10)(features)
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(x[:1200], y[:1200], epochs=15, verbose=0)

    found = kpg.influence.fisher(model, x[:1200], kind="kfac", verbose=0)
    kernel = found[model.layers[-1].kernel.path]
    left, u = np.linalg.eigh(kernel.inputs)
    right, v = np.linalg.eigh(kernel.outputs)
    # Of each weight, seen in the eigenbases.
    variance = 1 / (found.samples * np.outer(left, right) + PRIOR)

    hidden = keras.Model(inputs, features)

    def sureness(batch):
        """Return the largest probability, plain and by Laplace."""
        turned = hidden.predict(batch, verbose=0) @ u
        of_logits = turned**2 @ variance @ (v**2).T
        means = model.predict(batch, verbose=0)
        softened = means / np.sqrt(1 + np.pi / 8 * of_logits)
        return [_softmax(z).max(-1).mean() for z in (means, softened)]

    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 2, (500, 64)).astype("float32")
    for name, batch in (("digits", x[1200:]), ("noise", noise)):
        plain, laplace = sureness(batch)
        print(f"{name}: sure by {plain:.2f}, with Laplace by {laplace:.2f}")


def _softmax(z):
    powers = np.exp(z - z.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


if __name__ == "__main__":
    main()
