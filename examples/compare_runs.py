"""Are the gradients of several runs consistent?

Trains a small CNN on scikit-learn's handwritten digits with five seeds, and
with the first of them twice more, recording gradients on a fixed batch. Then
it says how far seeds and repeats are apart, and writes a page with charts.

    python examples/compare_runs.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pathlib
import shutil

import keras
from sklearn.datasets import load_digits

import keras_pergrad as kpg

OUTPUT = pathlib.Path(__file__).parent / "output"
SEEDS = [0, 0, 0, 1, 2, 3, 4]


def make_model():
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(0.1),
            layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(3e-3)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def train(x, y, probe, seed, name, log_dir):
    """One run; everything random in it follows from the seed."""
    keras.utils.set_random_seed(seed)
    record = kpg.callbacks.GradientVariance(
        probe=probe, every=8, log_dir=log_dir, run_name=name
    )
    model = make_model()
    model.fit(x, y, batch_size=64, epochs=6, verbose=0, callbacks=[record])


def main():
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1).astype("float32") / 16
    log_dir = OUTPUT / "runs"
    shutil.rmtree(log_dir, ignore_errors=True)
    probe = (x[:128], y[:128])
    for run, seed in enumerate(SEEDS, 1):
        train(x[128:], y[128:], probe, seed, f"run {run} seed {seed}", log_dir)
        print(f"run {run} of {len(SEEDS)}, with seed {seed}, is recorded")
    comparison = kpg.diagnose.compare_runs(log_dir)
    print(comparison)
    page = comparison.to_html(OUTPUT / "compare_runs.html")
    print(f"Charts: {page}")


if __name__ == "__main__":
    main()
