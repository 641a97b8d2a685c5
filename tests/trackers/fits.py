"""Fits with trackers, and a tracker that keeps what it gets."""

import keras
import numpy as np

import keras_pergrad as kpg
from tests.models.making import compiled, net, trained

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
    hidden = keras.layers.Dense(8, activation="tanh")
    head = keras.layers.Dense(1, name="head")
    model = net(hidden, head, shape=(4,), units=None, cls=cls)
    return compiled(model, **arguments)


def watching(trackers, **arguments):
    return kpg.callbacks.GradientVariance(
        (X[:8], Y[:8]), every=2, repeats=1, trackers=trackers, **arguments
    )


def fitted(trackers, more=(), model=None, **arguments):
    """Return the callback and the model after a fit of four steps an epoch."""
    fitting = {"epochs": 2, "initial_epoch": 0}
    fitting |= {k: arguments.pop(k) for k in fitting if k in arguments}
    watch, model = watching(trackers, **arguments), model or make()
    trained(model, X, Y, batch_size=8, callbacks=[watch, *more], **fitting)
    return watch, model
