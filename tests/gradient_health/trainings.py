"""Three small trainings, sound or with one planted fault."""

import dataclasses
import functools
from unittest import mock

import keras
import numpy as np
from sklearn.datasets import load_digits

import keras_pergrad as kpg
from keras_pergrad.gradient_health import adviser
from keras_pergrad.gradient_health.advice import advise
from tests.models.making import net

layers = keras.layers
#: Samples that are trained on; the probe is of others.
TRAINED, PROBE = 1437, 64
BATCH, EPOCHS = 32, 6
INSTRUMENTS = ("update_ratio", "distance", "alpha", "early_stopping")
FAULTS = ("rate_too_high", "rate_too_low", "layer_dead", "loss_is_a_sum")
#: A new head on layers that are trained, frozen or not; labels that no input
#: tells: no fault that a gradient shows.
SOUND = ("sound", "base_frozen", "trained_layer_changed", "labels_unrelated")


@dataclasses.dataclass(frozen=True)
class Task:
    """A data set, a model, and how it is trained.

    `model` takes a bias for its layer "inner": -1000 makes that dead.
    """

    data: object
    model: object
    optimizer: object
    rate: float


@functools.cache
def digits(*shape):
    """Return x from 0 to 1, and y."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(x))
    return (x[order] / 16).astype("float32").reshape(-1, *shape), y[order]


@functools.cache
def sequences():
    """Return noisy one-hot sequences, and the symbol that each has most of."""
    generator = np.random.default_rng(7)
    symbols = generator.integers(0, 6, (1797, 12))
    y = np.array([np.bincount(s, minlength=6).argmax() for s in symbols])
    x = np.eye(6)[symbols] + generator.normal(0, 0.1, (1797, 12, 6))
    return x.astype("float32"), y


def mlp(bias):
    """Return a dense classifier."""
    return net(
        layers.Dense(64, activation="relu", name="outer"),
        layers.Dense(32, "relu", bias_initializer=bias, name="inner"),
        layers.Dense(10, activation="softmax", name="head"),
        shape=(64,),
        units=None,
    )


def cnn(bias):
    """Return a convolutional classifier."""
    inner = {"bias_initializer": bias, "name": "inner"}
    return net(
        layers.Conv2D(8, 3, activation="relu", name="outer"),
        layers.Conv2D(16, 3, activation="relu", **inner),
        layers.Flatten(),
        layers.Dense(10, activation="softmax", name="head"),
        shape=(8, 8, 1),
        units=None,
    )


def transformer(bias):
    """Return one block of attention, with a classifier."""
    inputs = keras.Input((12, 6))
    h = layers.Dense(16, name="outer")(inputs)
    attended = layers.MultiHeadAttention(2, 8, name="attention")(h, h)
    h = layers.LayerNormalization(name="norm")(h + attended)
    wide = layers.Dense(
        32, activation="relu", bias_initializer=bias, name="inner"
    )(h)
    h = layers.LayerNormalization(name="end")(h + layers.Dense(16)(wide))
    h = layers.GlobalAveragePooling1D()(h)
    h = layers.Dense(6, activation="softmax", name="head")(h)
    return keras.Model(inputs, h)


TASKS = {
    "mlp": Task(lambda: digits(64), mlp, keras.optimizers.SGD, rate=0.1),
    "cnn": Task(
        lambda: digits(8, 8, 1),
        cnn,
        lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
        rate=0.03,
    ),
    "transformer": Task(
        sequences, transformer, keras.optimizers.Adam, rate=0.003
    ),
}


def planted(name, fault, seed):
    """Return a compiled model, its training data and its probe."""
    keras.utils.set_random_seed(seed)
    task = TASKS[name]
    x, y = task.data()
    if fault == "labels_unrelated":
        y = np.random.default_rng(seed).permutation(y)
    dead = keras.initializers.Constant(-1000.0)
    model = task.model(dead if fault == "layer_dead" else "zeros")
    times = {"rate_too_high": 30, "rate_too_low": 0.01}.get(fault, 1)
    if fault in ("trained_layer_changed", "base_frozen"):
        compiled(model, task, 1, is_sum=False)
        model.fit(x[:TRAINED], y[:TRAINED], BATCH, epochs=4, verbose=0)
        y = (y + 1) % 3
        head = layers.Dense(3, activation="softmax", name="new")
        model = keras.Model(model.input, head(model.layers[-2].output))
    if fault == "base_frozen":
        for layer in model.layers[:-1]:
            layer.trainable = False
    compiled(model, task, times, is_sum=fault == "loss_is_a_sum")
    probe = x[TRAINED:][:PROBE], y[TRAINED:][:PROBE]
    return model, (x[:TRAINED], y[:TRAINED]), probe


def compiled(model, task, times, *, is_sum):
    """Compile for classification."""
    reduction = "sum" if is_sum else "sum_over_batch_size"
    model.compile(
        task.optimizer(times * task.rate),
        keras.losses.SparseCategoricalCrossentropy(reduction=reduction),
    )


def watched(name, fault, seed, *, epochs=EPOCHS):
    """Train with all that advice reads.

    Returns:
        The advice, the readings and the `Fit` that it was given on.
    """
    model, (x, y), probe = planted(name, fault, seed)
    watch = kpg.callbacks.GradientVariance(
        probe=probe, repeats=1, instruments=INSTRUMENTS
    )
    return fit_watched(model, x, y, watch=watch, epochs=epochs)


def fit_watched(model, x, y, *, watch, batch_size=BATCH, epochs=EPOCHS):
    """Train, and return the same as `watched`."""
    with mock.patch.object(adviser, "advise", wraps=advise) as spy:
        model.fit(x, y, batch_size, epochs, verbose=0, callbacks=[watch])
    return watch.advice, *spy.call_args.args
