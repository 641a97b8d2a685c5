"""Two devices, and what the checks on them share.

A process of its own, since the devices of one are fixed when TensorFlow
starts. The global batches are of 11, 11 and 1 samples: the replicas have 6
and 5 of them, and in the end 1 and none.
"""

import contextlib
import functools
import json
import sys
import traceback

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.keras_internals.distribution.split import split_device
from tests.modes import big_batch

CHECKS = {}
#: What makes the strategy, once the device is split.
MAKERS = []
X, Y = (a.astype("float32") for a in (big_batch.X, big_batch.TARGETS))


def check(function):
    CHECKS[function.__name__] = function
    return function


def main():
    """Runs the checks, or those that the command line names behind "GPU"."""
    kind, names = "CPU", sys.argv[1:]
    if names[:1] == ["GPU"]:
        kind, *names = names
    MAKERS.append(split_device(kind))
    results = {}
    for name in names or CHECKS:
        keras.backend.clear_session()
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
        keras.utils.set_random_seed(7)
        try:
            CHECKS[name]()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()[-3000:]
    print(json.dumps(results))


@functools.cache
def strategy():
    # One for all: TensorFlow numbers the messages of each from the start.
    return MAKERS[0]()


def clipped(**arguments):
    return kpg.ClippedMean(0.3, **arguments)


def double():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def both(function):
    """What `function()` returns without and with a strategy, same seed."""
    results = []
    for scope in (contextlib.nullcontext(), strategy().scope()):
        keras.utils.set_random_seed(3)
        with scope:
            results.append(function())
    return results


def same(case, mode, optimizer=None, **arguments):
    """Asserts equal weights and history after training a case, at 1e-10."""
    double()

    def train():
        return big_batch.train(
            case,
            kpg.PerGradModel,
            gradient_mode=mode(),
            optimizer=optimizer and optimizer(),
            batch_size=11,
            **{"jit_compile": False, **arguments},
        )

    alone, together = both(train)
    big_batch.assert_same(together, alone)


def dense(
    mode, loss="mse", optimizer="sgd", *, make=big_batch.dense, **arguments
):
    model = make(kpg.PerGradModel)
    model.compile(
        optimizer, loss, gradient_mode=mode, jit_compile=False, **arguments
    )
    return model


def copies(model):
    """The values of all weights on each replica."""
    values = [
        model.distribute_strategy.experimental_local_results(v.value)
        for v in model.variables
    ]
    return [[np.asarray(v) for v in part] for part in zip(*values)]


def assert_equal_copies(model):
    first, second = copies(model)
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def raises(function, *words):
    with pytest.raises(ValueError) as error:
        function()
    for word in words:
        assert word in str(error.value), str(error.value)
