"""Which ops of a training step run on the accelerator, and are they right?

Trains three small models on random numbers and prints, for each, where its
ops ran, whether each device computes what the CPU computes, whether the same
fit gives the same weights again, and where the ops would run on a Mac, by
Apple's plugin and by the community's.

    python examples/device_placement.py
    python examples/device_placement.py --save placement.json

The second writes all of it, with what the doctor says, into one file
without personal paths, to send to the project from a Mac. `try_metal.py`
beside this file does it for both plugins, each in an environment of its own.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
from keras import layers

import keras_pergrad as kpg

SAMPLES, FITS = 64, 3
PLATFORMS = ("metal", "metal-community")


def image_model():
    return (12, 12, 2), [
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dense(16, activation="relu"),
        layers.Dense(3),
    ]


def relu_model():
    """What Metal fuses: matmul, bias and relu, in compiled steps."""
    return (8,), [layers.Dense(16, activation="relu"), layers.Dense(3)]


def sequence_model():
    return (10, 4), [layers.LSTM(8, use_cudnn=False), layers.Dense(3)]


def make_model(name, make):
    """Makes a model, the same each time, and random numbers for it."""
    keras.utils.set_random_seed(0)
    shape, stack = make()
    model = keras.Sequential([keras.Input(shape), *stack], name=name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # No plugin for Metal brings an XLA compiler.
    model.compile("adam", loss, jit_compile=False)
    random = np.random.default_rng(0)
    x = random.normal(size=(SAMPLES, *shape)).astype("float32")
    return model, x, random.integers(0, 3, SAMPLES)


def repeat(name, make):
    """Fits from the same seed again and again; returns how far they differ."""
    fits = []
    for _ in range(FITS):
        model, x, y = make_model(name, make)
        model.fit(x, y, epochs=2, batch_size=16, verbose=0, shuffle=False)
        weights = [np.ravel(weight) for weight in model.get_weights()]
        fits.append(np.concatenate(weights))
    largest = max(float(np.abs(fit - fits[0]).max()) for fit in fits)
    finite = bool(np.isfinite(fits).all())
    print(f"\n{FITS} fits from one seed: weights differ by {largest:.1g}")
    if not finite:
        print("weights are NaN or infinite")
    return {"finite": finite, "largest_difference": str(largest)}


def look_at(name, make):
    """Trains, compares and predicts; returns what was found."""
    print(f"\n=== {name}")
    model, x, y = make_model(name, make)
    placement = kpg.callbacks.DevicePlacement(deep=True, warn=False)
    model.fit(x, y, epochs=2, batch_size=16, verbose=0, callbacks=[placement])
    comparison = kpg.diagnose.compare_devices(model, x, y)
    print(f"\n{comparison}")
    check = kpg.check_gradients(
        model,
        x,
        y,
        gradient_modes=["batch", "vectorized"],
        settings=["eager", "graph"],
        repeats=10,
        verbose=0,
    )
    print(f"\n{check}")
    repeats = repeat(name, make)
    predictions = {
        platform: kpg.diagnose.predict_placement(
            model, x[:16], y[:16], platform=platform
        )
        for platform in PLATFORMS
    }
    for prediction in predictions.values():
        print(f"\n{prediction}")
    return {
        "report": str(placement.report),
        "kernels": {
            kind: placement.report.counts(kind)
            for kind in ("device", "generic", "cpu")
        },
        "predicted": {
            platform: {
                kind: prediction.counts(kind)
                for kind in ("device", "generic", "cpu")
            }
            for platform, prediction in predictions.items()
        },
        "agrees": comparison.ok,
        "comparison": str(comparison),
        "gradients_agree": check.ok,
        "gradients": str(check),
        "repeats": repeats,
    }


def doctor():
    """What `python -m keras_pergrad doctor --json` says."""
    command = [sys.executable, "-m", "keras_pergrad", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout.replace(str(pathlib.Path.home()), "~"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE")
    chosen = parser.parse_args()
    models = {
        "images": image_model,
        "relu": relu_model,
        "sequences": sequence_model,
    }
    found = {name: look_at(name, make) for name, make in models.items()}
    if chosen.save:
        found["doctor"] = doctor()
        chosen.save.write_text(json.dumps(found, indent=1))
        print(f"\nsaved: {chosen.save.name}")


if __name__ == "__main__":
    main()
