"""Steps on the stand-in; see test_on_stand_in.py."""

import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from tests.metal_stub import models

SETTINGS = ("auto", "TF32", "no TF32", "deterministic")


def steps(plugin, model):
    """setting → whether XLA compiles, as Keras and we say; layouts; error."""
    found = {}
    for setting in SETTINGS:
        tf.config.experimental.enable_tensor_float_32_execution(
            setting != "no TF32"
        )
        if setting == "deterministic":  # there is no way back
            tf.config.experimental.enable_op_determinism()
        found[setting] = {"xla": _xla(model)}
        if setting != "auto":  # the stand-in brings no compiler
            found[setting].update(_step(model))
    return found


def _xla(name):
    model, _, _ = _make(name, "vectorized", jit_compile="auto")
    plain, _, _ = models.make(name, "sgd", jit_compile="auto")
    ours = kpg.explain(model, models.BATCH)
    return [plain.jit_compile, model.jit_compile, ours.jit_compile]


def _step(name):
    """Compare a clipped step with one that takes sample by sample."""
    clipped = kpg.ClippedMean(0.1)
    modes = kpg.Vectorized(clipped), kpg.PerSample(clipped)
    weights, layouts = [], set()
    for mode in modes:
        model, x, y = _make(name, mode)
        before = model.get_weights()
        model.train_on_batch(x, y)
        weights.append(model.get_weights())
        step = tf.function(model.train_step, autograph=False)
        graph = step.get_concrete_function((x, y)).graph.as_graph_def()
        bodies = [graph.node, *(f.node_def for f in graph.library.function)]
        layouts |= {
            node.attr["data_format"].s.decode()
            for nodes in bodies
            for node in nodes
            if "data_format" in node.attr
        }
    pairs = list(zip(*weights))
    return {
        "layouts": sorted(layouts),
        "moved": float(
            max(np.abs(a - b).max() for a, b in zip(before, weights[0]))
        ),
        "apart": float(max(np.abs(a - b).max() for a, b in pairs)),
    }


def _make(name, mode, **options):
    return models.make(
        name, "sgd", wrap=kpg.PerGradModel, gradient_mode=mode, **options
    )
