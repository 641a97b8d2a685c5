"""Two tasks of which plain training learns one: table and picture of the guide.

    python -m benchmarks.extras.conflicting_losses --seeds 5 [--picture FILE]

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
    "ByTask(UPGrad())": (kpg.ByTask(kpg.aggregations.UPGrad()), None),
    "ByTask(AlignedMTL())": (kpg.ByTask(kpg.aggregations.AlignedMTL()), None),
    "ByTask(MGDA())": (kpg.ByTask(kpg.aggregations.MGDA()), None),
    "ByTask(IMTLG())": (kpg.ByTask(kpg.aggregations.IMTLG()), None),
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


def draw(found, path):
    """Draw the mean ± standard deviation of each way, and all seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    titles = "label, accuracy", "price, unexplained"
    places = range(len(found), 0, -1)
    for k, (axis, title) in enumerate(zip(axes, titles)):
        for place, columns in zip(places, found.values()):
            column = columns[k]
            axis.plot(column, [place] * len(column), ".", color="silver")
            mean, spread = np.mean(column), np.std(column)
            axis.errorbar(
                mean, place, xerr=spread, fmt="o", color="tab:blue", capsize=4
            )
        axis.set_title(title, fontsize=10)
        axis.set_yticks(list(places), list(found), fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.3)
    axes[0].axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    axes[1].axvline(0.53, color="black", linewidth=0.8, linestyle=":")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    """Print the table, and draw it if asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--picture")
    given = parser.parse_args()
    print("| training | label, accuracy | price, unexplained |")
    print("|---|---|---|")
    found = {}
    for name, way in WAYS.items():
        runs = [train(seed, *way) for seed in range(given.seeds)]
        found[name] = list(zip(*runs))
        cells = [f"{np.mean(c):.2f} ± {np.std(c):.2f}" for c in found[name]]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
