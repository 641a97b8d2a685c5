"""Two tasks of which plain training learns one: the table of the guide.

    python -m benchmarks.conflicting_losses --seeds 5

A price of large, noisy values and a label share a narrow trunk. For each way to
train: the accuracy of the label and the unexplained share of the price's
variance on held-out samples, mean ± standard deviation over the seeds.
"""

import argparse

import keras
import numpy as np

import keras_pergrad as kpg

WAYS = {
    "plain": ("batch", None),
    "plain, loss weight 0.005": ("batch", {"price": 0.005, "label": 1.0}),
    "ByTask(UPGrad())": (kpg.ByTask(kpg.UPGrad()), None),
    "ByTask(AlignedMTL())": (kpg.ByTask(kpg.AlignedMTL()), None),
    "ByTask(MGDA())": (kpg.ByTask(kpg.MGDA()), None),
    "ByTask(IMTLG())": (kpg.ByTask(kpg.IMTLG()), None),
}


def data(seed, n=2560):
    """Return inputs, and a price and a label of each."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).astype("float32")
    direction = rng.normal(size=8)
    direction /= np.linalg.norm(direction)
    noise = 1.5 * rng.normal(size=n)
    price = 8 * ((x @ direction) ** 2 - 1 + noise)
    label = x[:, 0] * x[:, 1] > 0
    columns = {"price": price, "label": label}
    return x, {k: v[:, None].astype("float32") for k, v in columns.items()}


def make(seed):
    """Return a model of two heads on a narrow trunk."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8,))
    trunk = keras.layers.Dense(16, "relu")(inputs)
    trunk = keras.layers.Dense(6, "relu")(trunk)
    price = keras.layers.Dense(1, name="price")(trunk)
    label = keras.layers.Dense(1, "sigmoid", name="label")(trunk)
    return kpg.PerGradModel(inputs, {"price": price, "label": label})


def train(seed, mode, loss_weights):
    """Return the accuracy of the label, and what is left of the price."""
    x, y = data(seed)
    model = make(seed)
    model.compile(
        keras.optimizers.Adam(0.01),
        {"price": "mse", "label": "binary_crossentropy"},
        loss_weights=loss_weights,
        metrics={"label": ["accuracy"]},
        gradient_mode=mode,
        steps_per_execution=8,
    )
    first = {name: values[:512] for name, values in y.items()}
    model.fit(x[:512], first, batch_size=64, epochs=40, verbose=0)
    others = {name: values[512:] for name, values in y.items()}
    logs = model.evaluate(
        x[512:], others, batch_size=512, verbose=0, return_dict=True
    )
    left = logs["price_loss"] / others["price"].var()
    return logs["label_accuracy"], left


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print("| training | label, accuracy | price, unexplained |")
    print("|---|---|---|")
    for name, way in WAYS.items():
        columns = zip(*(train(seed, *way) for seed in seeds))
        cells = [f"{np.mean(c):.2f} ± {np.std(c):.2f}" for c in columns]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
