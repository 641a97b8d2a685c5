"""A prediction of where a step runs on a Mac."""

from collections.abc import Mapping
from typing import Any, Literal

import keras

from keras_pergrad.common.arguments import named_arguments, require_one_of
from keras_pergrad.common.batches import as_tensors
from keras_pergrad.functions.data_passes import (
    make_ready,
    require_outside_functions,
)
from keras_pergrad.keras_internals.graphs.runs import (
    PLUMBING,
    as_in_fit,
    run_training_step,
)
from keras_pergrad.keras_internals.models.parts import (
    compile_arguments,
    inner_layers,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.modes.inspection import require_compiled, require_one_batch
from keras_pergrad.placement import graph, kernels, metal
from keras_pergrad.placement.operations import Operation
from keras_pergrad.placement.report import PlacementReport

# Both plugins switch TensorFlow's own remapping and layout passes off,
# so the graph to judge is the one without them. (2 is RewriterConfig.OFF.)
_REWRITES = {"remapping": 2, "layout_optimizer": 2}
# On x86, oneDNN rewrites a CPU graph last and merges pairs of ops that stay
# separate on an accelerator.
_ONEDNN_MERGED = {
    "Conv2DWithBias": ("Conv2D", "BiasAdd"),
    "Conv2DBackpropFilterWithBias": ("Conv2DBackpropFilter", "BiasAddGrad"),
    "PadWithConv2D": ("Pad", "Conv2D"),
}
# They take the handle of a variable, as those whose names begin "Resource".
_VARIABLE_OPS = {"RngReadAndSkip", "RngSkip", "StatefulUniform"}


@advising()
@named_arguments
def predict_placement(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    platform: Literal["metal", "metal-community"] = "metal",
    kernels_table: Mapping[str, list[str]] | None = None,
) -> PlacementReport:
    """Predict where a training step would run on a Mac with Metal.

    The step is traced and optimised as in TensorFlow. Each op is then looked
    up in the table of kernels that a plugin for Metal registers. This works
    on any machine; no result comes from a run on a Mac.

    Args:
        model: a compiled `keras.Model` or `PerGradModel`; it is
            left as it is.
        x: one batch of inputs.
        y: its targets; None: the step gets none, as that of a GAN.
        platform: `"metal"` for Apple's tensorflow-metal 1.2.0,
            `"metal-community"` for tensorflow-metal-plugin 0.4.1.
        kernels_table: op → list of type names, for another release of the
            plugin; by default the table of that one.

    Returns:
        A `PlacementReport` whose `prediction` names the plugin's version,
        or says that the table was your own.
        `errors` holds the ops at which the step would stop, each with the
        way out; `fallbacks()` the ops on the CPU. Copies are not
        predicted: `copies` is `None`.

    Raises:
        ValueError: another platform, or a model that is not compiled.

    Example:

    >>> import keras, numpy
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = numpy.ones((8, 4)), numpy.ones((8, 1))
    >>> report = kpg.diagnose.predict_placement(model, x, y)
    >>> [op for op, reason, number, layers in report.fallbacks()]
    ['AddV2']
    """
    require_outside_functions()
    require_one_of("platform", platform, metal.PLUGINS)
    require_compiled(model)
    require_one_batch(model, x, y)
    batch = as_in_fit((x,) if y is None else (x, y))
    make_ready(model, as_tensors((*batch, None, None)[:3]))
    batch = keras.utils.pack_x_y_sample_weight(*batch)
    plugin = metal.PLUGINS[platform]
    table = kernels.table_of(plugin, kernels_table)
    nodes = optimised_nodes(model, batch)
    layer_of = graph.Layers(model, [node.name for node in nodes])
    operations, errors, on_device = [], [], set()
    for node, op, kind in _place_nodes(nodes, table):
        layer, where, reason = layer_of(node.name), "GPU:0", ""
        if kind == "error":
            errors.append(_error_text(node, op, layer))
        if kind in ("error", "cpu"):
            kind, where, reason = "cpu", "CPU:0", _cpu_reason(node, op, table)
        else:
            on_device.add(node)
        operation = Operation(
            op=op,
            name=node.name,
            device=where,
            kind=kind,
            dtypes=node.dtypes,
            layer=layer,
            reason=reason,
        )
        operations.append(operation)
    # Keras turns "auto" off on a Mac with a GPU, and on elsewhere: only a True
    # that the user wrote counts, and compile() keeps that.
    xla = compile_arguments(model).get("jit_compile") is True
    return PlacementReport(
        device=None,
        platform="Metal",
        operations=operations,
        copies=None,
        opaque=[(n.name, "", n.opaque_kind) for n in nodes if n.opaque_kind],
        hazards=[
            *metal.hazards_of_settings(xla, plugin),
            *metal.hazards_of_operations(operations, plugin),
            *metal.hazards_of_fusion(
                nodes, layer_of, plugin, on_metal=on_device
            ),
        ],
        notes=_notes(model, operations, table, nodes=nodes),
        prediction=table.version,
        errors=errors,
    )


def optimised_nodes(model, data):
    """Return the nodes of the training step, optimised and on one CPU."""
    trace = run_training_step(model, data, device="/CPU:0", rewrites=_REWRITES)
    return graph.read(trace.partition_graphs)


def _place_nodes(nodes, table):
    """Yield a node, its op, and "device", "generic", "cpu" or "error"."""
    for node in nodes:
        if node.op in PLUMBING or node.opaque_kind:
            continue
        for op in _ONEDNN_MERGED.get(node.op, (node.op,)):
            kind = table.serving(node.definition, op)
            if kernels.is_host_op(op, node.dtypes):
                kind = "cpu"
            elif kind == kernels.NONE:
                # A variable's ops are not moved away from the accelerator.
                is_pinned = op.startswith("Resource") or op in _VARIABLE_OPS
                kind = "error" if is_pinned else "cpu"
            yield node, op, kind


def _cpu_reason(node, op, table):
    types, text = table.known_types(op), "no Metal kernel"
    if kernels.is_host_op(op, node.dtypes):
        text = "host-only op"
    elif types:
        dtype = kernels.data_type(node.definition)
        listed = ", ".join(types[:6]) + (", ..." if len(types) > 6 else "")
        text = f"{text} for {dtype} (only {listed})"
    hint = metal.hint(op)
    return f"{text}; {hint}" if hint else text


def _error_text(node, op, layer):
    where = f" in {layer}" if layer else ""
    return (
        f"{op}{where}: 'Cannot assign a device for operation'. It works "
        f"on a variable, which lives on the GPU, and has no Metal kernel for "
        f"{kernels.data_type(node.definition)}. Put the layer's "
        f"variables on the CPU (build it under tf.device('/CPU:0')), or train "
        f"on the CPU (tf.config.set_visible_devices([], 'GPU') at the start)."
    )


def _notes(model, operations, table, *, nodes):
    notes = [graph.COUNTED_ONCE] if graph.turns(nodes) else []
    has_tiles = any(o.op == "Tile" and o.kind != "cpu" for o in operations)
    if has_tiles and table.version == metal.APPLE.release:
        notes.append(
            "Tile: the plugin registers it, but for which types cannot be "
            "read from its binary; it is counted as a Metal kernel."
        )
    cudnn_layers = [
        layer.name
        for layer in inner_layers(model)
        if getattr(layer, "use_cudnn", False) in (True, "auto")
    ]
    if cudnn_layers:
        has = "CudnnRNNV3" in table.kernels
        known = "has; reported slow or failing" if has else "lacks: it stops"
        notes.append(
            f"{', '.join(cudnn_layers)}: where a GPU is listed, Keras calls "
            f"one CudnnRNNV3 op (which {table.version} {known}) instead of the "
            f"loop that was judged here. "
            f"use_cudnn=False keeps the loop."
        )
    return notes
