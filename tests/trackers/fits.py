"""Fits with trackers, and a tracker that keeps what it gets."""

import keras
import numpy as np

import keras_pergrad as kpg

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X[:, :1] * X[:, 1:2]


class Kept(kpg.trackers.Tracker):
    """Keeps the readings and the names of the calls."""

    def __init__(self):
        self.calls, self.readings, self.runs = [], [], []

    def _called(self, name):
        self.calls.append(name)

    def begin(self, run):
        self._called("begin")
        self.runs.append(run)

    def write(self, reading):
        self._called("write")
        self.readings.append(reading)

    def advise(self, advice):
        self._called("advise")

    def interrupt(self):
        self._called("interrupt")

    def end(self):
        self._called("end")


def make(cls=kpg.PerGradModel, **arguments):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh")(inputs)
    model = cls(inputs, keras.layers.Dense(1, name="head")(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse", **arguments)
    return model


def watching(trackers, **arguments):
    return kpg.callbacks.GradientVariance(
        (X[:8], Y[:8]), every=2, repeats=1, trackers=trackers, **arguments
    )


def fitted(trackers, more=(), model=None, epochs=2, **arguments):
    """Return the callback and the model after a fit of four steps an epoch."""
    watch, model = watching(trackers, **arguments), model or make()
    model.fit(
        X,
        Y,
        batch_size=8,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[watch, *more],
    )
    return watch, model
