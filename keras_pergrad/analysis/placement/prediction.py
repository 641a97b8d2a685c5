"""A prediction of where a step runs on a machine that is not at hand."""

from collections.abc import Mapping
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.analysis.placement import (
    graph,
    hazards,
    kernel_tables,
    kernels,
    layers,
    loops,
)
from keras_pergrad.analysis.placement.operations import Operation
from keras_pergrad.analysis.placement.placement_report import PlacementReport
from keras_pergrad.keras_internals.graph_session import (
    GraphCopy,
    as_in_fit,
    trace_step,
)
from keras_pergrad.keras_internals.inspection_checks import (
    check_trainable,
    require_one_batch,
)
from keras_pergrad.keras_internals.model_parts import (
    compile_arguments,
    inner_layers,
)

_PLATFORMS = ("metal",)
# tensorflow-metal switches TensorFlow's own remapping and layout passes off,
# so the graph to judge is the one without them. (2 is RewriterConfig.OFF.)
_REWRITES = {"remapping": 2, "layout_optimizer": 2}
# On x86, oneDNN rewrites a CPU graph last and merges pairs of ops that stay
# apart on an accelerator.
_MERGED = {
    "Conv2DWithBias": ("Conv2D", "BiasAdd"),
    "Conv2DBackpropFilterWithBias": ("Conv2DBackpropFilter", "BiasAddGrad"),
    "PadWithConv2D": ("Pad", "Conv2D"),
}
# They take the handle of a variable, as those whose names begin "Resource".
_PINNED = {"RngReadAndSkip", "RngSkip", "StatefulUniform"}


def predict_placement(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    platform: Literal["metal"] = "metal",
    kernels_table: Mapping[str, list[str]] | None = None,
) -> PlacementReport:
    """Predict where a training step would run on a Mac with Metal.

    The step is traced and optimised as in TensorFlow. Each op is then looked
    up in the table of kernels that tensorflow-metal 1.2.0 registers. This
    works on any machine; no result comes from a run on a Mac.

    Args:
        model: a compiled and built `keras.Model` or `PerGradModel`; it is
            left as it is.
        x: one batch of inputs.
        y: its targets.
        platform: `"metal"`, the only one with a table.
        kernels_table: op → list of type names, for another release of the
            plugin; by default the table of 1.2.0.

    Returns:
        A `PlacementReport` whose `prediction` names the plugin's version,
        or says that the table was your own.
        `errors` holds the ops at which the step would stop, each with the
        way out; `fallbacks()` the ops on the CPU. Copies are not
        predicted: `copies` is `None`.

    Raises:
        ValueError: another platform, or a model that is not compiled or
            not built.

    Example:

    >>> import keras, numpy
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = numpy.ones((8, 4)), numpy.ones((8, 1))
    >>> report = kpg.predict_placement(model, x, y)
    >>> [op for op, reason, number, layers in report.fallbacks()]
    ['AddV2']
    """
    if platform not in _PLATFORMS:
        raise ValueError(
            f"`platform` expected one of {', '.join(map(repr, _PLATFORMS))}. "
            f"Received: platform={platform!r}"
        )
    check_trainable(model)
    require_one_batch(model, x, y)
    table = kernel_tables.metal(kernels_table)
    nodes = optimised_nodes(model, as_in_fit((x, y)))
    layer_of = layers.Layers(model, [node.name for node in nodes])
    executions = loops.Executions(nodes)
    report = PlacementReport(None, "Metal", prediction=table.version)
    report.copies = None
    report.opaque = [(n.name, "", n.hides) for n in nodes if n.hides]
    on_device = set()
    for node, op, kind in _places(nodes, table):
        layer, where, why = layer_of(node.name), "GPU:0", ""
        if kind == "error":
            report.errors.append(_error(node, op, layer))
        if kind in ("error", "cpu"):
            kind, where, why = "cpu", "CPU:0", _reason(node, op, table)
        else:
            on_device.add(node)
        at = node.name, where, kind, node.dtypes, layer
        report.operations.append(Operation(op, *at, executions(node), why))
    # Keras turns "auto" off on a Mac with a GPU, and on elsewhere: only a True
    # that the user wrote counts, and compile() keeps that.
    xla = compile_arguments(model).get("jit_compile") is True
    report.hazards += hazards.of_settings(xla)
    report.hazards += hazards.of_operations(report.operations)
    report.hazards += hazards.of_fusion(nodes, layer_of, on_device)
    report.notes += _notes(model, report, table)
    return report


def optimised_nodes(model, data):
    """Return the nodes of the training step, optimised and on one CPU."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    concrete, values = trace_step(model.train_step, data)
    metadata = tf.compat.v1.RunMetadata()
    with GraphCopy(concrete, device="/CPU:0", rewrites=_REWRITES) as copied:
        copied.run(values, trace=metadata)
    return graph.read(metadata.partition_graphs)


def _places(nodes, table):
    """Yield a node, its op, and "device", "generic", "cpu" or "error"."""
    for node in nodes:
        if node.op in graph.PLUMBING or node.hides:
            continue
        for op in _MERGED.get(node.op, (node.op,)):
            kind = table.serving(node.definition, op)
            if kernels.is_host_op(op, node.dtypes):
                kind = "cpu"
            elif kind == kernels.NONE:
                # A variable's ops are not moved away from the accelerator.
                pinned = op.startswith("Resource") or op in _PINNED
                kind = "error" if pinned else "cpu"
            yield node, op, kind


def _reason(node, op, table):
    types, why = table.known_types(op), "no Metal kernel"
    if kernels.is_host_op(op, node.dtypes):
        why = "host-only op"
    elif types:
        wanted = kernel_tables.data_type(node.definition)
        listed = ", ".join(types[:6]) + (", ..." if len(types) > 6 else "")
        why = f"{why} for {wanted} (only {listed})"
    hint = kernel_tables.hint(op)
    return f"{why}; {hint}" if hint else why


def _error(node, op, layer):
    where = f" in {layer}" if layer else ""
    return (
        f"{op}{where}: 'Cannot assign a device for operation'. It works "
        f"on a variable, which lives on the GPU, and has no Metal kernel for "
        f"{kernel_tables.data_type(node.definition)}. Put the layer's "
        f"variables on the CPU (build it under tf.device('/CPU:0')), or train "
        f"on the CPU (tf.config.set_visible_devices([], 'GPU') at the start)."
    )


def _notes(model, report, table):
    notes = []
    tiles = any(o.op == "Tile" and o.kind != "cpu" for o in report.operations)
    if tiles and table.version == kernel_tables.METAL_VERSION:
        notes.append(
            "Tile: the plugin registers it, but for which types cannot be "
            "read from its binary; it is counted as a Metal kernel."
        )
    rnn = [
        layer.name
        for layer in inner_layers(model)
        if getattr(layer, "use_cudnn", False) in (True, "auto")
    ]
    if rnn:
        has = "has" if "CudnnRNNV3" in table.kernels else "lacks"
        notes.append(
            f"{', '.join(rnn)}: where a GPU is listed, Keras calls one "
            f"CudnnRNNV3 op (which {table.version} {has}; reported slow or "
            f"failing) instead of the loop that was judged here. "
            f"use_cudnn=False keeps the loop."
        )
    return notes
