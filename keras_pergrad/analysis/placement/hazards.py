"""Known hazards on Metal: what is slow, fails or computes wrong numbers.

Each entry rests on reports of users or on the plugin's binary; none of it
is measured by the callback. `compare_devices` measures.
"""

import dataclasses
import re

_ACTIVATIONS = {"Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid"}
_CONTRACTIONS = {"MatMul", "Conv2D", "DepthwiseConv2dNative"}
_WITH_BIAS = {"Conv2DWithBias"}
_COUNTING = {"Add", "AddV2", "Sub", "AssignAddVariableOp"}
_DRAWS = re.compile(
    "(Random|Stateless|TruncatedNormal|Multinomial|Rng)(?!.*(KeyCounter|GetAlg))"
)


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


_XLA = Hazard(
    "xla",
    "error",
    "jit_compile=True: tensorflow-metal brings no XLA compiler, and "
    "TensorFlow stops with 'could not find registered compiler'. "
    "Pass jit_compile=False to compile().",
)
_FUSED = Hazard(
    "fused_activation",
    "wrong",
    "matmul or convolution + bias + activation is fused into one op on Metal, "
    "and users report wrong numbers from it. Run "
    "keras_pergrad.compare_devices; if it finds a difference, set "
    "TURN_OFF_REMAPPER=1 in the environment, or use another activation.",
)
# Hazards of one op: which, how bad, what is known, and where it applies.
_OF_OPS = (
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
        lambda o: o.kind == "cpu" and "int64" in o.dtypes and o.op in _COUNTING,
    ),
    (
        "random",
        "wrong",
        "random generator: old tensorflow-metal releases repeat the same "
        "numbers or fail for whole numbers. Check that two calls differ.",
        lambda o: o.kind != "cpu" and _DRAWS.match(o.op),
    ),
    (
        "cudnn_rnn",
        "slow",
        "this RNN picked the cuDNN op because a GPU is listed: on Metal it "
        "is reported slow or failing. Pass use_cudnn=False to the layer.",
        lambda o: o.op.startswith("CudnnRNN"),
    ),
)


def of_settings(jit_compile):
    """Return hazards of how the model was compiled."""
    return [_XLA] if jit_compile else []


def of_operations(operations):
    """Return hazards of the ops of a step."""
    return [
        Hazard(code, severity, message, _names(layers))
        for code, severity, message, applies in _OF_OPS
        if (layers := [o.layer for o in operations if applies(o)])
    ]


def of_fusion(nodes, layer_of, on_metal=None):
    """Return hazards of contraction + bias + activation, off the CPU."""
    if on_metal is None:
        on_metal = {n for n in nodes if not n.device.startswith("CPU")}
    users = {}
    for node in nodes:
        for feeder, _ in node.inputs:
            users.setdefault(feeder, []).append(node)
    fused = [n for n in nodes if n in on_metal and _is_fused(n, users)]
    layers = _names(layer_of(node.name) for node in fused)
    return [dataclasses.replace(_FUSED, layers=layers)] if fused else []


def _is_fused(node, users):
    # TensorFlow's own fusions carry the parts in `fused_ops`; tensorflow-metal
    # fuses after the graphs are handed over, so the unfused chain counts too.
    if node.op.startswith("_Fused"):
        parts = {p.decode() for p in node.attr["fused_ops"].list.s}
        return "BiasAdd" in parts and bool(parts & _ACTIVATIONS)
    after = users.get(node, [])
    if node.op in _CONTRACTIONS:
        if [user.op for user in after] != ["BiasAdd"]:
            return False
        after = users.get(after[0], [])
    elif node.op not in _WITH_BIAS:
        return False
    return any(user.op in _ACTIVATIONS for user in after)


def _names(layers):
    return tuple(dict.fromkeys(name for name in layers if name))
