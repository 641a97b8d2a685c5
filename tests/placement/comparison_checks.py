"""Checks of compare_devices that need the stand-in."""

import keras

from keras_pergrad.placement.comparison import compare_devices
from tests.metal_stub import models

# model, op that is made wrong, in nodes named so, by how much
DAMAGE = (
    ("dense", "BiasAdd", "dense_1", 0.4),
    ("cnn", "Conv2DBackpropFilter", "conv2d", 0.01),
    ("rnn", "Sigmoid", "", 1.0),
    ("embedding", "Mean", "", 1.0),
    ("attention", "Softmax", "", 0.1),
)
RIGHT = ("dense", "cnn", "rnn", "embedding", "attention", "mnist")


def compare(plugin):
    """model, right or with a wrong op → what compare_devices says."""
    found = {}
    cases = [(name, "", "", 0.0) for name in RIGHT]
    for name, op, nodes, by in (*cases, *DAMAGE):
        keras.backend.clear_session()  # names count from the start
        model, x, y = models.make(name)
        plugin.damage(op, nodes, by)
        before = [v.numpy().copy() for v in model.variables]
        result = compare_devices(model, x, y)
        after = [v.numpy() for v in model.variables]
        [device] = result.devices
        suspect = device.suspect
        found[f"{name} {op}".strip()] = {
            "ok": result.ok,
            "agreement": device.agreement,
            "wrong": device.wrong,
            "op": suspect and suspect.op,
            "layer": suspect and suspect.layer,
            "text": str(result),
            "unchanged": all((a == b).all() for a, b in zip(before, after)),
        }
    return found
