"""What is wrong with these trainings? In less than a minute.

Trains a small network on scikit-learn's handwritten digits, soundly and with
faults planted one by one, and prints what `GradientVariance` advises on each.

    python examples/gradient_variance.py
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_pergrad as kpg

TRAINED, PROBE, EPOCHS = 1500, 64, 6


def make_model(**second):
    """Two hidden layers; `second` goes to the second one."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(64, "relu", name="first"),
            layers.Dense(32, "relu", name="second", **second),
            layers.Dense(10, "softmax", name="last"),
        ]
    )


def advice_on(x, y, rate=0.1, *, reduction="sum_over_batch_size", **second):
    """Trains, watched on samples that are not trained on."""
    keras.utils.set_random_seed(0)
    model = make_model(**second)
    model.compile(
        keras.optimizers.SGD(rate),
        keras.losses.SparseCategoricalCrossentropy(reduction=reduction),
    )
    held_out = slice(TRAINED, TRAINED + PROBE)
    watch = kpg.callbacks.GradientVariance(
        probe=(x[held_out], y[held_out]), repeats=1, instruments="all"
    )
    model.fit(
        x[:TRAINED], y[:TRAINED], epochs=EPOCHS, verbose=0, callbacks=[watch]
    )
    return watch.advice


def main():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order]
    always_off = keras.initializers.Constant(-1000.0)
    trainings = {
        "sound": advice_on(x, y),
        "rate × 30": advice_on(x, y, rate=3.0),
        "rate / 100": advice_on(x, y, rate=0.001),
        "a dead layer": advice_on(x, y, bias_initializer=always_off),
        "summed loss": advice_on(x, y, reduction="sum"),
    }
    for name, advice in trainings.items():
        print(f"\n{name}: {'' if advice else 'nothing to say'}")
        for one in advice:
            print(f"  {one.name}: {one.text}")


if __name__ == "__main__":
    main()
