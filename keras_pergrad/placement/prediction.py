"""A prediction of where a step runs on a Mac, and the hazards known there.

Each hazard rests on reports of users or on the plugin's binary; none of it is
measured. `compare_devices` measures.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

import keras

from keras_pergrad.common.batches import as_tensors
from keras_pergrad.common.names import named_arguments, require_one_of
from keras_pergrad.functions.data_passes import make_ready
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
from keras_pergrad.placement import graph, kernels
from keras_pergrad.placement.operations import Operation
from keras_pergrad.placement.report import PlacementReport

# Both plugins switch TensorFlow's own remapping and layout passes off,
# so the graph to judge is the one without them. (2 is RewriterConfig.OFF.)
_REWRITES = {"remapping": 2, "layout_optimizer": 2}
# On x86, oneDNN rewrites a CPU graph last and merges pairs of ops that stay
# apart on an accelerator.
_ONEDNN_MERGED = {
    "Conv2DWithBias": ("Conv2D", "BiasAdd"),
    "Conv2DBackpropFilterWithBias": ("Conv2DBackpropFilter", "BiasAddGrad"),
    "PadWithConv2D": ("Pad", "Conv2D"),
}
# They take the handle of a variable, as those whose names begin "Resource".
_VARIABLE_OPS = {"RngReadAndSkip", "RngSkip", "StatefulUniform"}
_ACTIVATIONS = {"Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid"}
#: Ops that a device may make one op of with those after them.
CONTRACTIONS = {"MatMul", "Conv2D", "DepthwiseConv2dNative"}
FUSED_AFTER = {"BiasAdd", *_ACTIVATIONS}
_WITH_BIAS = {"Conv2DWithBias"}
_COUNTER_OPS = {"Add", "AddV2", "Sub", "AssignAddVariableOp"}
_RANDOM_OPS = re.compile(
    "(Random|Stateless|TruncatedNormal|Multinomial|Rng)(?!.*(KeyCounter|GetAlg))"
)


@dataclasses.dataclass(frozen=True)
class Hazard:
    """One warning.

    Attributes:
        code: a short name that stays the same between releases.
        severity: `"wrong"` (known to be wrong on some versions), `"error"` or
            `"slow"`.
        message: what is known and what to do.
        layers: where it was found.
    """

    code: str
    severity: str
    message: str
    layers: tuple[str, ...] = ()


_XLA_HAZARD = Hazard(
    "xla",
    "error",
    "jit_compile=True: no plugin for Metal brings an XLA compiler, and "
    "TensorFlow stops with 'could not find registered compiler'. "
    "Pass jit_compile=False to compile().",
)
_RACE_HAZARD = Hazard(
    "variable_race",
    "wrong",
    "tensorflow-metal-plugin: TensorFlow's host code writes variables beside "
    "the GPU's work, since TensorFlow 2.20 and 2.21 give a plugin no way to "
    "do it. Weights became NaN without an error until each kernel waited for "
    "the GPU. Leave TF_METAL_SYNCHRONOUS unset, run "
    "keras_pergrad.check_gradients, and repeat a fit from the same seed: it "
    "must give the same weights.",
)
_FUSION_HAZARD = Hazard(
    "fused_activation",
    "wrong",
    "matmul or convolution + bias + activation (Dense with relu) is fused into "
    "one op on Metal in compiled steps, and users report wrong numbers from "
    "it; eager steps are right. Run "
    "keras_pergrad.diagnose.compare_devices; if it finds a difference, set "
    "TURN_OFF_REMAPPER=1 in the environment, or use another activation.",
)
# Hazards of one op: which, how bad, what is known, and where it applies.
_OP_HAZARDS = (
    (
        "float64",
        "slow",
        "float64: Metal computes none of it, so these ops run on the CPU. "
        "Cast to float32.",
        lambda o: o.kind == "cpu" and "float64" in o.dtypes,
    ),
    (
        "int64_counter",
        "slow",
        "int64 counter: Metal has no int64 arithmetic, so the optimizer's "
        "step number travels to the CPU and back in every step. Keras makes "
        "it so; there is nothing to change in the model.",
        lambda o: (
            o.kind == "cpu" and "int64" in o.dtypes and o.op in _COUNTER_OPS
        ),
    ),
    (
        "random",
        "wrong",
        "random generator: old tensorflow-metal releases repeat the same "
        "numbers or fail for whole numbers. Check that two calls differ.",
        lambda o: o.kind != "cpu" and _RANDOM_OPS.match(o.op),
    ),
    (
        "cudnn_rnn",
        "slow",
        "this RNN picked the cuDNN op because a GPU is listed: on Metal it "
        "is reported slow or failing. Pass use_cudnn=False to the layer.",
        lambda o: o.op.startswith("CudnnRNN"),
    ),
)


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
        y: its targets.
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
    require_one_of("platform", platform, kernels.PLATFORMS)
    require_compiled(model)
    require_one_batch(model, x, y)
    batch = as_in_fit((x, y))
    make_ready(model, as_tensors((*batch, None)))
    table = kernels.metal(kernels_table, platform)
    nodes = optimised_nodes(model, batch)
    layer_of = graph.Layers(model, [node.name for node in nodes])
    run_counts = graph.RunCounts(nodes)
    report = PlacementReport(None, "Metal", prediction=table.version)
    report.copies = None
    report.opaque = [
        (n.name, "", n.opaque_kind) for n in nodes if n.opaque_kind
    ]
    on_device = set()
    for node, op, kind in _place_nodes(nodes, table):
        layer, where, reason = layer_of(node.name), "GPU:0", ""
        if kind == "error":
            report.errors.append(_error_text(node, op, layer))
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
            runs=1 if run_counts.runs_once(node) else None,
            reason=reason,
        )
        report.operations.append(operation)
    # Keras turns "auto" off on a Mac with a GPU, and on elsewhere: only a True
    # that the user wrote counts, and compile() keeps that.
    xla = compile_arguments(model).get("jit_compile") is True
    report.hazards += hazards_of_settings(xla, platform)
    report.hazards += hazards_of_operations(report.operations, platform)
    if platform == kernels.METAL:
        report.hazards += hazards_of_fusion(nodes, layer_of, on_device)
    report.notes += _notes(model, report, table)
    return report


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
    hint = kernels.hint(op)
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


def _notes(model, report, table):
    notes = []
    has_tiles = any(
        o.op == "Tile" and o.kind != "cpu" for o in report.operations
    )
    if has_tiles and table.version == kernels.METAL_VERSION:
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


def hazards_of_settings(jit_compile, platform=kernels.METAL):
    """Return hazards of how the model was compiled, and of the plugin."""
    hazards = [_XLA_HAZARD] if jit_compile else []
    if platform == kernels.COMMUNITY:
        hazards.append(_RACE_HAZARD)
    return hazards


def hazards_of_operations(operations, platform=kernels.METAL):
    """Return hazards of the ops of a step."""
    return [
        Hazard(code, severity, message, _layer_names(layers))
        for code, severity, message, applies in _OP_HAZARDS
        # Reports of repeated random numbers are about Apple's plugin.
        if platform == kernels.METAL or code != "random"
        if (layers := [o.layer for o in operations if applies(o)])
    ]


def hazards_of_fusion(nodes, layer_of, on_metal=None):
    """Return hazards of contraction + bias + activation, off the CPU."""
    if on_metal is None:
        on_metal = {n for n in nodes if not n.device.startswith("CPU")}
    consumers = {}
    for node in nodes:
        for producer, _ in node.inputs:
            consumers.setdefault(producer, []).append(node)
    fused = [n for n in nodes if n in on_metal and _is_fused(n, consumers)]
    layers = _layer_names(layer_of(node.name) for node in fused)
    return [dataclasses.replace(_FUSION_HAZARD, layers=layers)] if fused else []


def _is_fused(node, consumers):
    # TensorFlow's own fusions carry the parts in `fused_ops`; tensorflow-metal
    # fuses after the graphs are handed over, so the unfused chain counts too.
    if node.op.startswith("_Fused"):
        fused_ops = {p.decode() for p in node.attr["fused_ops"].list.s}
        return "BiasAdd" in fused_ops and bool(fused_ops & _ACTIVATIONS)
    next_nodes = consumers.get(node, [])
    if node.op in CONTRACTIONS:
        if [consumer.op for consumer in next_nodes] != ["BiasAdd"]:
            return False
        next_nodes = consumers.get(next_nodes[0], [])
    elif node.op not in _WITH_BIAS:
        return False
    return any(consumer.op in _ACTIVATIONS for consumer in next_nodes)


def _layer_names(layers):
    return tuple(dict.fromkeys(name for name in layers if name))
