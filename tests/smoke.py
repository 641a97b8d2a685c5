"""What an installed wheel must be able to do; run by itself.

python tests/smoke.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib
import tempfile

import keras
import numpy as np

import keras_pergrad as kpg


def main():
    """Clip, look at samples, check, save and load."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(hidden))
    mode = kpg.Vectorized(kpg.ClippedMean(1.0, noise_multiplier=0.1))
    model.compile("adam", "mse", gradient_mode=mode)
    model.fit(x, y, batch_size=8, verbose=0)
    assert kpg.per_sample_norms(model, x, y).shape == (32,)
    assert kpg.input_gradients(model, x, verbose=0).shape == (32, 1, 4)
    found = kpg.check_gradients(model, x, y, gradient_modes=["batch"])
    assert found.ok
    assert kpg.diagnose.predict_placement(
        model, x, y
    )  # its tables are in the wheel
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    assert loaded.gradient_mode.aggregation.clip_norm == 1.0
    print(f"keras_pergrad {kpg.__version__} works")


if __name__ == "__main__":
    main()
