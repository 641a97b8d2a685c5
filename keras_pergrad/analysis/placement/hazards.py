"""Known hazards on Metal: what is slow, fails or computes wrong numbers.

Each entry rests on reports of users or on the plugin's binary; none of it
is measured by the callback. `compare_devices` measures.
"""

import dataclasses

_ACTIVATIONS = {"Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid"}
_CONTRACTIONS = {"MatMul", "Conv2D", "DepthwiseConv2dNative"}
_WITH_BIAS = {"Conv2DWithBias"}
_RANDOM = ("Random", "Stateless", "TruncatedNormal", "Multinomial", "Rng")


@dataclasses.dataclass(frozen=True)
class Hazard:
    """One warning.

    Attributes:
        code: a short name that stays the same between releases.
        severity: `"wrong"`, `"error"` or `"slow"`.
        message: what is known and what to do.
        layers: where it was found.
    """

    code: str
    severity: str
    message: str
    layers: tuple[str, ...] = ()


def _where(operations):
    return tuple(dict.fromkeys(o.layer for o in operations if o.layer))


def of_settings(jit_compile):
    """Return hazards that follow from how the model was compiled."""
    if not jit_compile:
        return []
    return [
        Hazard(
            "xla",
            "error",
            "jit_compile=True: tensorflow-metal brings no XLA compiler, and "
            "TensorFlow stops with 'could not find registered compiler'. "
            "Pass jit_compile=False to compile().",
        )
    ]


def of_operations(operations):
    """Return hazards that follow from the ops of a step."""
    found = []

    def add(code, severity, message, matching):
        if matching:
            found.append(Hazard(code, severity, message, _where(matching)))

    add(
        "float64",
        "slow",
        "float64: Metal computes none of it, so these ops run on the CPU. "
        "Cast to float32.",
        [o for o in operations if "float64" in o.dtypes and o.kind == "cpu"],
    )
    add(
        "int64_counter",
        "slow",
        "int64 counter: Metal has no int64 arithmetic, so the optimizer's "
        "step number travels to the CPU and back in every step. Keras makes "
        "it so; there is nothing to change in the model.",
        [
            o
            for o in operations
            if o.op in ("Add", "AddV2", "Sub", "AssignAddVariableOp")
            and "int64" in o.dtypes
            and o.kind == "cpu"
        ],
    )
    add(
        "random",
        "wrong",
        "random generator: old tensorflow-metal releases repeat the same "
        "numbers or fail for whole numbers. Check that two calls differ.",
        [
            o
            for o in operations
            if o.op.startswith(_RANDOM)
            and o.kind != "cpu"
            and "KeyCounter" not in o.op
            and "GetAlg" not in o.op
        ],
    )
    add(
        "cudnn_rnn",
        "slow",
        "this RNN picked the cuDNN op because a GPU is listed: on Metal it "
        "is reported slow or failing. Pass use_cudnn=False to the layer.",
        [o for o in operations if o.op.startswith("CudnnRNN")],
    )
    return found


def _only(users):
    return users[0] if len(users) == 1 else None


def of_fusion(nodes, layer_of, on_metal=None):
    """Find contraction + bias + activation, fused or about to be fused.

    TensorFlow's own fusions carry the parts in `fused_ops`; tensorflow-metal
    fuses after the graphs are handed over, so the unfused chain counts too.

    Args:
        nodes: the linked nodes of the step.
        layer_of: a function from node name to layer.
        on_metal: the nodes that run on Metal; by default those that are
            not on a CPU.
    """
    if on_metal is None:
        on_metal = {n for n in nodes if not n.device.startswith("CPU")}
    users = {}
    for node in nodes:
        for feeder, _ in node.inputs:
            users.setdefault(feeder, []).append(node)
    found = []
    for node in nodes:
        if node not in on_metal:
            continue
        if node.op.startswith("_Fused"):
            parts = {p.decode() for p in node.attr["fused_ops"].list.s}
            if "BiasAdd" in parts and parts & _ACTIVATIONS:
                found.append(layer_of(node.name))
        elif node.op in _CONTRACTIONS or node.op in _WITH_BIAS:
            bias = node
            if node.op in _CONTRACTIONS:
                bias = _only(users.get(node, []))
                if bias is None or bias.op != "BiasAdd":
                    continue
            after = users.get(bias, [])
            if any(user.op in _ACTIVATIONS for user in after):
                found.append(layer_of(node.name))
    if not found:
        return []
    return [
        Hazard(
            "fused_activation",
            "wrong",
            "matmul or convolution + bias + activation is fused into one op "
            "on Metal, and users report wrong numbers from it. Run "
            "keras_pergrad.compare_devices; if it finds a difference, set "
            "TURN_OFF_REMAPPER=1 in the environment, or use another "
            "activation.",
            tuple(dict.fromkeys(name for name in found if name)),
        )
    ]
