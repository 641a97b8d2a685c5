"""Per-sample gradients of a real data set, in a minute.

Trains a small CNN on scikit-learn's handwritten digits with every sample's
gradient clipped, compares the gradient modes with plain Keras, and draws how
large each training digit's gradient is, with the ten most unusual digits.

    python examples/quickstart.py
"""

import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
BATCH, CLIP_NORM = 64, 2.0


def make_model():
    """A CNN whose normalisation treats every sample alone."""
    layers = keras.layers
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.GroupNormalization(4)(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    x = layers.GroupNormalization(4)(x)
    x = layers.GlobalAveragePooling2D()(x)
    return kpg.PerGradModel(inputs, layers.Dense(10, activation="softmax")(x))


def compile_model(model, mode):
    """Compiles for classification with one gradient mode."""
    model.compile(
        keras.optimizers.Adam(3e-3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        gradient_mode=mode,
    )
    return model


def train(x, y, held_out):
    """Trains with clipping: one unusual digit cannot dominate a step."""
    mode = kpg.Vectorized(aggregation=kpg.ClippedMean(clip_norm=CLIP_NORM))
    model = compile_model(make_model(), mode)
    model.fit(x, y, batch_size=BATCH, epochs=6, validation_data=held_out)
    return model


def plain_gradient(model, x, y):
    """The gradient as plain Keras computes it."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    return tape.gradient(loss, model.trainable_variables)


def median_step_times(models, x, y, *, rounds=15):
    """Median milliseconds of a train step; the models take turns."""
    times = {mode: [] for mode in models}
    for _ in range(rounds + 2):
        for mode, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(x, y)
            times[mode].append(1e3 * (time.perf_counter() - start))
    # The first two rounds compile and warm up.
    return {mode: np.median(taken[2:]) for mode, taken in times.items()}


def compare_modes(x, y):
    """One row a mode: distance from plain Keras, and the time of a step."""
    x, y = tf.constant(x[:BATCH]), tf.constant(y[:BATCH])
    models, differences = {}, {}
    for mode in ("batch", "vectorized", "accumulated", "per_sample"):
        keras.utils.set_random_seed(0)
        model = models[mode] = compile_model(make_model(), mode)
        plain = plain_gradient(model, x, y)
        step = model.gradient_mode.step(model, x, y, None)
        differences[mode] = max(
            float(tf.reduce_max(tf.abs(ours - theirs)))
            for ours, theirs in zip(step.gradients, plain, strict=True)
        )
    times = median_step_times(models, x, y)
    print(f"\n{'gradient_mode':<16}{'largest difference':>20}", end="")
    print(f"{'ms per step':>14}{'relative':>10}")
    for mode, milliseconds in times.items():
        print(
            f"{mode:<16}{differences[mode]:>20.1e}{milliseconds:>14.2f}"
            f"{milliseconds / times['batch']:>9.2f}×"
        )


def draw_unusual(model, images, x, *, y):
    """Draws how large each digit's gradient is, and the ten largest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    norms = kpg.per_sample_norms(model, x, y, training=False).numpy()
    order = np.argsort(norms)[::-1][:10]
    predicted = model.predict(x[order], verbose=0).argmax(1)
    figure = plt.figure(figsize=(10, 3.8))
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.6])
    draw_norms(left.subplots(), norms, norms[order[-1]])
    axes = right.subplots(2, 5)
    right.suptitle("The ten largest: look at these", fontsize=11)
    for axis, i, guess in zip(axes.flat, order, predicted, strict=True):
        axis.imshow(images[i], cmap="gray_r")
        axis.set_title(f"labelled {y[i]}\npredicted {guess}", fontsize=9)
        axis.set_xlabel(f"#{i}: {norms[i]:.0f}", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    left.subplots_adjust(0.16, 0.14, 0.97, 0.9)
    right.subplots_adjust(0.02, 0.08, 0.98, 0.8, hspace=0.6)
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / "unusual_digits.png"
    figure.savefig(path, dpi=120)
    print(f"\nThe ten most unusual training digits: {order.tolist()}")
    print(f"Their picture: {path.relative_to(OUTPUT.parent.parent)}")


def draw_norms(axis, norms, large):
    """Draws a histogram of all norms; those from `large` on in red."""
    edges = np.geomspace(max(norms.min(), 1e-3), norms.max(), 40)
    _, _, bars = axis.hist(norms, edges, color="tab:blue")
    for bar, edge in zip(bars, edges[1:]):
        if edge > large:
            bar.set_color("tab:red")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.axvline(CLIP_NORM, color="black", linestyle="--")
    axis.annotate(
        f"clipped to {CLIP_NORM:g} →",
        (CLIP_NORM, 0.95),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=9,
    )
    axis.set_title(f"‖gradient‖ of {len(norms)} training digits", fontsize=11)
    axis.set_xlabel("norm of the digit's own gradient", fontsize=9)
    axis.set_ylabel("digits", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


def main():
    keras.utils.set_random_seed(0)
    digits = load_digits()
    x = (digits.images[..., None] / 16).astype("float32")
    y = digits.target
    n = 4 * len(x) // 5
    model = train(x[:n], y[:n], held_out=(x[n:], y[n:]))
    compare_modes(x, y)
    draw_unusual(model, digits.images, x[:n], y=y[:n])


if __name__ == "__main__":
    main()
