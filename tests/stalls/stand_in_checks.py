"""What the pipeline's tools say on the stand-in device.

Its copies of a batch, and each of its kernels, take as long as its switches
say.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled, net, trained
from tests.stalls.recorded_stalls import say

BATCHES = 12


def copies(plugin):
    """Times the copies of a `fit`, and of one that follows the advice."""
    x = np.random.default_rng(0).normal(size=(8 * BATCHES, 1000))
    x = 0.01 * x.astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
    before = _fit(dataset)
    found = {"before": _figures(before), "code": None}
    # Times of a device that does nothing else, for what is said of them.
    told = _told(dataset, copy_ms=15.0, copy_fraction=0.4)
    found["advice"] = [advice.name for advice in told.advice]
    profile = kpg.diagnose.profile_pipeline(
        dataset, before.model, batches=BATCHES
    )
    found["profile"] = [profile.copy_ms, profile.what_if, str(profile)]
    for advice in told.advice:
        if advice.name == "prefetch to device":
            names = {"tf": tf, "dataset": dataset}
            exec(advice.code, names)
            found["code"] = advice.code
            found["after"] = _figures(_fit(names["dataset"]))
            found["advice after"] = _told(names["dataset"]).advice
    found["several steps"] = _figures(_fit(dataset, steps_per_execution=3))
    found["eager"] = _figures(_fit(dataset, run_eagerly=True))
    with tf.device("CPU:0"):
        found["on the CPU"] = _figures(_fit(dataset))
    found["weights"] = _weights(dataset, [])
    found["weights timed"] = _weights(dataset, [kpg.callbacks.DataStall()])
    return found


def _trained(dataset, callbacks, epochs=2, **settings):
    model = net(shape=(1000,), units=1, seed=0)
    model = compiled(model, rate=0.01, jit_compile=False, **settings)
    return trained(model, dataset, epochs=epochs, callbacks=callbacks)


def _fit(dataset, **settings):
    stall = kpg.callbacks.DataStall()
    _trained(dataset, [stall], **settings)
    return stall


def _told(dataset, **figures):
    with pytest.MonkeyPatch.context() as patch:
        say(patch, {"wait_ms": 0.1, "step_ms": 35.0, **figures})
        return _fit(dataset)


def _figures(stall):
    report = dataclasses.asdict(stall.reports[-1])
    report["step_fraction"] = stall.reports[-1].step_fraction
    return report


def _weights(dataset, callbacks):
    model = _trained(dataset, callbacks, epochs=1)
    return [float(w.sum()) for w in model.get_weights()]
