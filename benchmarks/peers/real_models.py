"""Plain and clipped `fit` steps of the models of `tests/real_models.py`."""

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from benchmarks.harness.job import Job
from tests.real_models import MODELS, loss

CLIP_NORM = 0.05
#: So small that no plain step diverges, however many are timed.
LEARNING_RATE = 1e-6


def build(rival, model, size, *, known=False):
    """A job that trains one of the models on its batch.

    With `known`, the trace knows the number of samples.
    """
    keras.utils.set_random_seed(0)
    net, x, y = MODELS[model](size)
    settings = {}
    if rival == "ours":
        net = kpg.PerGradModel.from_model(net)
        settings["gradient_mode"] = kpg.Vectorized(kpg.ClippedMean(CLIP_NORM))
    net.compile(keras.optimizers.SGD(LEARNING_RATE), loss(), **settings)
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    data = data.batch(len(y), drop_remainder=known)
    iterator, begun = iter(data), False

    def step():
        nonlocal begun
        if begun:
            logs = net.train_function(iterator)
        else:
            # With all that `fit` makes once.
            logs = net.fit(data, steps_per_epoch=1, verbose=0).history
            begun = True
        value = np.asarray(logs["loss"])
        if not np.isfinite(value):
            raise ValueError(f"the loss is {value}")

    return Job(step, lambda: [])
