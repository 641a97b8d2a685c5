"""Checks of the report that need the stand-in; see test_on_stand_in.py."""

import json

import keras
import tensorflow as tf

from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.keras_internals.graphs import runs
from keras_pergrad.placement import operations, profile
from tests.metal_stub import models

STEPS = 4


class Truth(keras.callbacks.Callback):
    """Reads the plugin's counters around every step."""

    def __init__(self, plugin):
        super().__init__()
        self.plugin = plugin
        self.steps = []

    def on_train_batch_begin(self, batch, logs=None):
        self.plugin.reset()

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(self.plugin.counters())


def watch(plugin, model, x, y, **options):
    """Trains for some steps; returns the report and the plugin's truth."""
    placement = DevicePlacement(warn=False, **options)
    truth = Truth(plugin)
    batches = range(STEPS)
    x, y = ([part for _ in batches for part in data] for data in (x, y))
    history = model.fit(
        keras.ops.convert_to_numpy(x),
        keras.ops.convert_to_numpy(y),
        batch_size=len(x) // STEPS,
        shuffle=False,
        verbose=0,
        callbacks=[truth, placement],
    )
    report = placement.report
    last = truth.steps[-1]
    ways = operations.copies_by_direction(report.copies or [])
    return {
        "device": report.device,
        "platform": report.platform,
        "variables": report.variables,
        "counts": report.executions("device"),
        "truth": last["kernel_calls"],
        "copies": [ways[operations.TO_DEVICE], ways[operations.TO_HOST]],
        "copies_truth": [last["h2d"], last["d2h"]],
        "wrong_memory": last["wrong_memory"],
        "fallbacks": [list(row) for row in report.fallbacks()],
        "hazards": [h.code for h in report.hazards],
        "logs": {k: v[0] for k, v in history.history.items()},
        "deep": report.deep and vars(report.deep),
        "text": str(report),
        "restored": model.train_function.__name__ == "function",
    }


def replayed(plugin, model, x, y):
    """One traced step of a copy: what was read from it, and the truth."""
    concrete, values = runs.trace_step(model.train_step, (x, y))
    metadata = tf.compat.v1.RunMetadata()
    with runs.GraphCopy(concrete) as copy:
        copy.run(values)
        plugin.reset()
        copy.run(values, trace=metadata)
        truth = plugin.counters()
    deep = profile.analyse(metadata, step_ms=1.0, cpu_ms=1.0)
    counts = deep.executions[plugin.device]
    return [
        [deep.bytes_to_device, deep.bytes_to_host, deep.copies],
        [truth["h2d_bytes"], truth["d2h_bytes"], truth["h2d"] + truth["d2h"]],
        {op: counts.get(op, 0) - n for op, n in truth["kernel_calls"].items()},
    ]


def plain(plugin, *names):
    """model → report and truth."""
    return {name: watch(plugin, *models.make(name)) for name in names}


def small(plugin, *names):
    """The same, and what deep=True adds."""
    found = {}
    for name in names:
        model, x, y = models.make(name)
        found[name] = watch(plugin, model, x, y, deep=True)
        found[name]["replayed"] = replayed(plugin, model, x, y)
    return found


def settings(plugin):
    """The same for settings that change how a step is built."""
    found = {}
    model, x, y = models.make("embedding")
    model.fit(x, y, verbose=0)
    found["earlier fit"] = watch(plugin, model, x, y)
    looped = models.make("dense", steps_per_execution=2)
    found["steps"] = watch(plugin, *looped)
    model, x, y = models.make("dense", jit_compile=True)
    placement = DevicePlacement(warn=False)
    original = None
    try:
        model.fit(x, y, verbose=0, callbacks=[placement])
    except Exception as error:
        original = type(error).__name__
    hazards = [h.code for h in placement._setting_hazards()]
    restored = model.train_function.__name__
    found["xla"] = [original, hazards, restored]
    return json.loads(json.dumps(found))
