"""Traces of steps on a machine with an accelerator: need the stand-in."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels

import keras_pergrad as kpg
from tests import oracle
from tests.metal_stub import models

layers = keras.layers
NORM = 0.05
RATE = 0.1
#: Those that say "a deterministic GPU implementation … is not available".
NOT_DETERMINISTIC = {
    "AdjustContrastv2",
    "DepthwiseConv2dNativeBackpropFilter",
    "ResizeNearestNeighborGrad",
    "SparseTensorDenseMatMul",
}
MODES = {
    "batch": lambda: "batch",
    "vectorized": lambda: kpg.Vectorized(kpg.ClippedMean(NORM)),
    "statistics": lambda: kpg.Vectorized(statistics=True),
    "per_sample": lambda: kpg.PerSample(kpg.ClippedMean(NORM)),
    "accumulated": lambda: kpg.Accumulated(2),
}
CLIPPED = "vectorized", "per_sample"


def _cnn_first():
    return (2, 12, 12), [
        layers.Conv2D(4, 3, activation="relu", padding="same"),
        layers.MaxPooling2D(2),
        layers.DepthwiseConv2D(3),
        layers.SeparableConv2D(4, 3),
        layers.BatchNormalization(trainable=False),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
    ]


def _lstm(**arguments):
    return (7, 4), [layers.LSTM(5, **arguments), layers.Dense(3)]


def _block():
    block = models.TransformerBlock(2, 8, 16)
    average = layers.GlobalAveragePooling1D()
    return (6,), [layers.Embedding(20, 8), block, average, layers.Dense(3)]


STACKS = {
    **models.SMALL,
    "channels first": _cnn_first,
    "lstm": _lstm,
    "lstm, dropout": lambda: _lstm(dropout=0.3),
    "lstm, frozen": lambda: _lstm(trainable=False),
    "transformer block": _block,
}


def _make(name, mode=None, **compile_options):
    keras.utils.set_random_seed(0)
    if name == "channels first":
        keras.config.set_image_data_format("channels_first")
    shape, stack = STACKS[name]()
    ids = isinstance(stack[0], layers.Embedding)
    inputs = keras.Input(shape, dtype="int32" if ids else "float32")
    outputs = inputs
    for layer in stack:
        outputs = layer(outputs)
    keras.config.set_image_data_format("channels_last")
    options = {} if mode is None else {"gradient_mode": MODES[mode]()}
    make = kpg.PerGradModel if options else keras.Model
    model = make(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sgd = keras.optimizers.SGD(RATE)
    model.compile(sgd, loss, **options, **compile_options)
    random = np.random.default_rng(1)
    if ids:
        x = random.integers(0, 20, (4, *shape)).astype("int32")
    else:
        x = random.normal(size=(4, *shape)).astype("float32")
    return model, x, random.integers(0, 3, 4).astype("int32")


def _nodes(name, mode):
    """Return the nodes of a step's graph and of the functions it calls."""
    model, x, y = _make(name, mode, jit_compile=False)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    specs = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in (x, y)]
    graph = step.get_concrete_function(*specs).graph.as_graph_def()
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    return nodes


def _device_types(op):
    """Return the types of devices for which this wheel has a kernel."""
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return {kernel.device_type for kernel in registered}


def _sets_determinism(setting):
    """Turn determinism of ops on if a setting asks for it; return whether."""
    if setting == "deterministic":
        keras.utils.set_random_seed(0)
        tf.config.experimental.enable_op_determinism()
    return setting == "deterministic"


def traces(plugin, setting):
    """name → what the clipped step has, and the plain one has not."""
    del plugin
    on = _sets_determinism(setting)
    tf.config.experimental.enable_tensor_float_32_execution(not on)
    found = {}
    for name in STACKS:
        nodes = _nodes(name, "vectorized")
        plain = {node.op for node in _nodes(name, "batch")}
        more = {node.op for node in nodes} - plain
        found[name] = {
            "layouts": sorted(
                {
                    node.attr["data_format"].s.decode()
                    for node in nodes
                    if node.op.startswith(("Conv", "Depthwise"))
                }
            ),
            "more": sorted(more),
            "not for GPUs": sorted(
                op for op in more if not _device_types(op) & {"GPU", "DEFAULT"}
            ),
            "not deterministic": sorted(more & NOT_DETERMINISTIC),
        }
    return found


def jit(plugin, setting):
    """name → what plain Keras and each mode make of jit_compile="auto"."""
    del plugin
    _sets_determinism(setting)
    return {
        name: {
            mode or "plain": bool(_make(name, mode)[0].jit_compile)
            for mode in (None, *MODES)
        }
        for name in ("dense", "channels first", "lstm", "transformer block")
    }


def steps(plugin):
    """name → how far steps on the device, without XLA, are from the oracle's.

    Each model by clipping, and the mean in every mode.
    """
    found = {}
    for name in ("dense", "cnn", "rnn", "embedding", "attention"):
        with tf.device("CPU:0"):
            twin, x, y = _make(name, jit_compile=False)
            gradients = oracle.per_sample_gradients(twin, x, tf.constant(y))
            squares = sum(np.square(g).reshape(4, -1).sum(1) for g in gradients)
            clipped = np.minimum(1, NORM / np.sqrt(squares))
        found[name] = {"clipped": int(np.sum(clipped < 1)), "off": {}}
        for mode in MODES:
            factor = clipped if mode in CLIPPED else np.ones(4)
            right = [
                w - RATE * np.tensordot(factor, g, 1) / 4
                for w, g in zip(twin.get_weights(), gradients)
            ]
            model, x, y = _make(name, mode, jit_compile=False)
            plugin.reset()
            for _ in range(2 if mode == "accumulated" else 1):
                model.train_on_batch(x, y)
            found[name]["off"][mode] = max(
                float(np.max(np.abs(a - b)))
                for a, b in zip(model.get_weights(), right)
            )
            calls = plugin.counters()["kernel_calls"]
            assert sum(calls.values()), mode
    return found
