"""What placement's tools say on the stand-in; see the tests of each."""

import collections

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.keras_internals.graphs import runs
from keras_pergrad.placement import operations, profile
from keras_pergrad.placement.comparison import compare_devices
from keras_pergrad.placement.prediction import predict_placement
from tests.metal_stub import models
from tests.models.making import assert_equal, trained, weights

STEPS = 4


def watch(plugin, model, x, y, **options):
    """Trains for some steps; returns the report and the plugin's truth."""
    placement = DevicePlacement(warn=False, **options)
    steps = []  # what the plugin counts in each
    truth = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: plugin.reset(),
        on_train_batch_end=lambda batch, logs: steps.append(plugin.counters()),
    )
    data = [np.concatenate([part] * STEPS) for part in (x, y)]
    how = {"batch_size": len(x), "callbacks": [truth, placement]}
    logs = trained(model, *data, **how).history.history
    report = placement.report
    last = steps[-1]
    ways = [copy.direction for copy in report.copies or []]
    return {
        "device": report.device,
        "platform": report.platform,
        "variables": report.variables,
        "counts": report.counts("device"),
        "truth": last["kernel_calls"],
        "copies": [
            ways.count(operations.TO_DEVICE),
            ways.count(operations.TO_HOST),
        ],
        "copies_truth": [last["h2d"], last["d2h"]],
        "wrong_memory": last["wrong_memory"],
        "fallbacks": [list(row) for row in report.fallbacks()],
        "hazards": [h.code for h in report.hazards],
        "logs": {k: v[0] for k, v in logs.items()},
        "deep": report.deep and vars(report.deep),
        "text": str(report),
        "restored": model.train_function.__name__ == "function",
    }


def watch_and_replay(plugin, model, x, y, **options):
    """What `watch` returns, and what was read from a traced step of a copy."""
    found = watch(plugin, model, x, y=y, **options)
    concrete, values = runs.trace_step(model.train_step, (x, y))
    metadata = tf.compat.v1.RunMetadata()
    with runs.GraphCopy(concrete) as copy:
        copy.run(values)
        plugin.reset()
        copy.run(values, trace=metadata)
        truth = plugin.counters()
    deep = profile.analyse(metadata, step_ms=1.0, cpu_ms=1.0)
    counts = deep.executions[plugin.device]
    found["replayed"] = [
        [deep.bytes_to_device, deep.bytes_to_host, deep.copies],
        [truth["h2d_bytes"], truth["d2h_bytes"], truth["h2d"] + truth["d2h"]],
        {op: counts.get(op, 0) - n for op, n in truth["kernel_calls"].items()},
    ]
    return found


def plain(plugin, *names):
    """model → report and truth."""
    return {name: watch(plugin, *models.make(name)) for name in names}


def small(plugin, *names):
    """The same, and what deep=True adds."""
    return {
        name: watch_and_replay(plugin, *models.make(name), deep=True)
        for name in names
    }


def settings(plugin):
    """The same for settings that change how a step is built."""
    found = {}
    model, x, y = models.make("embedding")
    model.fit(x, y, verbose=0)
    found["earlier fit"] = watch(plugin, model, x, y=y)
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
    return found


def modes(plugin):
    """gradient mode → report and truth."""
    found = {}
    clipped = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    inside = kpg.Accumulated(microbatch_size=4, inner=clipped)
    chosen = {
        **{name: name for name in ("batch", "vectorized", "per_sample")},
        "clipped": clipped,
        "accumulated": kpg.Accumulated(microbatch_size=3),
        "accumulated, clipped": inside,
        "accumulated over steps": kpg.Accumulated(2, microbatch_size=4),
    }
    for name, mode in chosen.items():
        made = models.make("dense", wrap=kpg.PerGradModel, gradient_mode=mode)
        found[name] = watch_and_replay(plugin, *made)
    return found


# The input pipeline and Keras's logs are outside of the predicted step.
_OUTSIDE = {"IteratorGetNext", "OptionalFromValue"}


def by_kind(report):
    """kind → op and its types → how many ops."""
    counts = collections.defaultdict(collections.Counter)
    for operation in report.operations:
        if operation.op not in _OUTSIDE:
            key = " ".join([operation.op, *sorted(operation.dtypes)])
            counts[operation.kind][key] += 1
    return {kind: dict(found) for kind, found in counts.items()}


def agreement(plugin, name):
    """What is predicted and reported, by kind and op, and the kernels."""
    model, x, y = models.make(name)
    predicted = predict_placement(model, x, y)
    placement = DevicePlacement(warn=False)
    model.fit(x, y, batch_size=len(x), verbose=0, callbacks=[placement])
    reported = placement.report
    kernels = plugin.counters()["registered"]
    return [by_kind(predicted), by_kind(reported), kernels]


# model, op that is made wrong, in nodes named so, by how much
DAMAGE = (
    ("dense", "BiasAdd", "dense_1", 0.4),
    ("cnn", "Conv2DBackpropFilter", "conv2d", 0.01),
    ("rnn", "Sigmoid", "", 1.0),
    ("embedding", "Mean", "", 1.0),
    ("attention", "Softmax", "", 0.1),
)
#: Kernels that are right each, and wrong where a pass has made them one.
FUSED = ("dense", "_FusedMatMul", "", 30.0)
RIGHT = ("dense", "cnn", "rnn", "embedding", "attention", "mnist")


def compare(plugin):
    """model, right or with a wrong op → what compare_devices says."""
    right = [(name, "", "", 0.0) for name in RIGHT]
    return _compared(plugin, [*right, *DAMAGE])


def compare_fused(plugin):
    """The same where the plugin fuses, with what it has run."""
    found = _compared(plugin, [("dense", "", "", 0.0), FUSED])
    return {**found, "kernels": plugin.counters()["kernel_calls"]}


def _compared(plugin, cases):
    found = {}
    for name, op, nodes, by in cases:
        keras.backend.clear_session()  # names count from the start
        model, x, y = models.make(name)
        plugin.damage(op, nodes, by)
        model.optimizer.build(model.trainable_variables)
        before = weights(model)
        result = compare_devices(model, x, y)
        assert_equal(model, before)
        [device] = result.devices
        suspect = device.suspect
        found[f"{name} {op}".strip()] = {
            "ok": result.ok,
            "agreement": device.agreement,
            "op": suspect and suspect.op,
            "layer": suspect and suspect.layer,
            "text": str(result),
        }
    return found
