"""Checks of check_gradients that need the stand-in."""

import keras

from keras_pergrad.checking.check import check_gradients
from tests.metal_stub import models

# model, op that is made wrong, in nodes named so, by how much
DAMAGE = (
    ("dense", "", "", 0.0),
    ("dense", "BiasAdd", "dense_1", 0.4),
    ("cnn", "Conv2DBackpropFilter", "conv2d", 0.01),
)


# Right each, and wrong where a pass of the plugin has made them one.
FUSED = (("dense", "", "", 0.0), ("dense", "_FusedMatMul", "", 30.0))


def check(plugin):
    """model, right or with a wrong op → what check_gradients says."""
    return _checked(plugin, DAMAGE, ["graph", "xla"])


def check_fused(plugin):
    """The same where the plugin fuses."""
    return _checked(plugin, FUSED, ["eager", "graph"])


def _checked(plugin, cases, settings):
    found = {}
    for name, op, nodes, by in cases:
        keras.backend.clear_session()  # names count from the start
        model, x, y = models.make(name)
        plugin.damage(op, nodes, by)
        result = check_gradients(
            model,
            x,
            y,
            gradient_modes=["batch", "vectorized"],
            settings=settings,
            repeats=1,
        )
        found[f"{name} {op}".strip()] = {
            "rows": [
                [row.mode, row.device, row.setting, row.verdict]
                for row in result.rows
            ],
            "wrong": sorted({p for row in result.wrong for p in row.wrong}),
            "answer": result.answer,
            "text": str(result),
        }
    return found
