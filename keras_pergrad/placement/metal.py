"""Facts about Metal: which versions load together, and what is known to fail.

They come from the plugins' binaries, sources and metadata, and from reports of
users; nothing of it was run on a Mac. Reading them needs no TensorFlow.
"""

import dataclasses
import importlib.metadata
import re

#: `platform.system()` and `platform.machine()` where Metal is.
MAC = "Darwin", "arm64"
#: What fails whatever the versions are, and the way out.
PANDAS = (
    "on Apple silicon the first `fit` hangs in a program that imports pandas "
    "before TensorFlow (keras-team/keras#23083)",
    "import tensorflow, keras or keras_pergrad first",
)
BOTH = (
    "tensorflow-metal and tensorflow-metal-plugin both register the platform "
    "METAL: where both are installed, `import tensorflow` aborts",
    "pip uninstall tensorflow-metal, or pip uninstall tensorflow-metal-plugin",
)
NO_XLA = "no plugin brings an XLA compiler", "compile(..., jit_compile=False)"
NO_KERNELS = (
    "ops without a kernel run on the CPU, such as those of float64 and of "
    "int64; one that works on a variable stops",
    "keras_pergrad.diagnose.predict_placement names those of a model, on any "
    "machine",
)
#: At "0" kernels of the community's plugin do not wait for the GPU.
SYNCHRONOUS = "TF_METAL_SYNCHRONOUS"
RACE = (
    "TensorFlow's host code writes variables beside the GPU's work, since "
    "TensorFlow 2.20 and 2.21 give a plugin no way to do it. Weights became "
    "NaN without an error until each kernel waited for the GPU"
)
TEST = (
    "keras_pergrad.check_gradients on your model, and the same fit twice from "
    "one seed: both must give the same numbers"
)


@dataclasses.dataclass(frozen=True)
class Plugin:
    """A device plugin for Metal, of which one release is known.

    Attributes:
        package: its name.
        version: the release.
        maker: whose it is.
        bounds: a release of it → the first TensorFlow with which that works,
            and the first with which it does not. The metadata of Apple's names
            neither, so pip lets every pair pass.
        mismatch: what happens with another TensorFlow.
        python: the first Python for which it is built, and the first not.
        macos: the first macOS on which it runs.
        install: how to install it, with a TensorFlow that fits.
        fix: how to mend a pair that does not fit.
        kernels: the file with the table of its kernels, op → types.
        free_kernels: kernels of which the types are not known.
    """

    package: str
    version: str
    maker: str
    bounds: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]]
    mismatch: str
    python: tuple[tuple[int, ...], tuple[int, ...]]
    macos: int
    install: str
    fix: str
    kernels: str
    free_kernels: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    @property
    def release(self):
        """The package with its version."""
        return f"{self.package} {self.version}"


APPLE = Plugin(
    package="tensorflow-metal",
    version="1.2.0",
    maker="Apple",
    bounds={
        (1, 2): ((2, 18), (2, 20)),
        (1, 1): ((2, 14), (2, 18)),
        (1, 0): ((2, 13), (2, 14)),
        (0, 8): ((2, 12), (2, 13)),
    },
    mismatch="`import tensorflow` fails",
    python=((3, 11), (3, 13)),
    macos=12,
    install='pip install "keras-pergrad[metal]"',
    fix=(
        'pip install "tensorflow>=2.18,<2.20" "tensorflow-metal==1.2.0" '
        "(Python 3.12 at most), or, to train on the CPU, "
        "pip uninstall tensorflow-metal"
    ),
    # Extracted from its binary, in which the data of Tile cannot be read.
    kernels="tensorflow_metal_1_2_0_kernels.json",
    free_kernels={"Tile": ["any"]},
)
COMMUNITY = Plugin(
    package="tensorflow-metal-plugin",
    version="0.4.1",
    maker="the community",
    bounds={(0, 4): ((2, 21), (2, 22))},
    mismatch="it offers no GPU",
    python=((3, 11), (3, 14)),
    macos=15,
    install=(
        'pip install "tensorflow==2.21.*", then, once that is done, '
        'pip install "keras-pergrad[metal-community]"'
    ),
    fix=(
        'pip install "tensorflow==2.21.*", then, once that is done, '
        "pip install --force-reinstall --no-deps tensorflow-metal-plugin==0.4.1"
    ),
    # It ships as source: what its own code registers with TensorFlow 2.21.
    kernels="tensorflow_metal_plugin_0_4_1_kernels.json",
)
#: Name of the platform, and of the extra → its plugin.
PLUGINS = {"metal": APPLE, "metal-community": COMMUNITY}
#: What to use on a Mac → in place of which ops.
_HINTS = {
    "Dense layers and matmul run on Metal, einsum does not": "Einsum",
    "keras.activations.gelu(approximate=True) avoids it": "Erfc",
    "relu and leaky_relu have kernels": (
        "Elu EluGrad Selu SeluGrad Softplus SoftplusGrad"
    ),
    "tanh has a kernel": "Softsign SoftsignGrad",
    "no replacement: 3-D convolutions train on the CPU": (
        "Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2"
    ),
    "bilinear resizing has a forward kernel": "ResizeNearestNeighbor",
    "do it in the data pipeline": "FloorMod Unique",
    "a mask and a multiplication run on Metal": "Where",
}
_COUNTER_OPS = {"Add", "AddV2", "Sub", "AssignAddVariableOp"}
_RANDOM_OPS = re.compile(
    "(Random|Stateless|TruncatedNormal|Multinomial|Rng)(?!.*(KeyCounter|GetAlg))"
)
_ACTIVATIONS = {"Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid"}
#: Ops that a device may make one op of with those after them.
CONTRACTIONS = {"MatMul", "Conv2D", "DepthwiseConv2dNative"}
FUSED_AFTER = {"BiasAdd", *_ACTIVATIONS}
_WITH_BIAS = {"Conv2DWithBias"}


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
    f"jit_compile=True: {NO_XLA[0]}, and TensorFlow stops with 'could not find "
    f"registered compiler'. Write {NO_XLA[1]}.",
)
_RACE_HAZARD = Hazard(
    "variable_race",
    "wrong",
    f"{COMMUNITY.package}: {RACE}. Leave {SYNCHRONOUS} unset, and try {TEST}.",
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


def installed():
    """Return which plugin drives Metal here: the community's, if installed."""
    try:
        importlib.metadata.version(COMMUNITY.package)
    except importlib.metadata.PackageNotFoundError:
        return APPLE
    return COMMUNITY


def hint(op):
    """Return what to use in place of an op without a kernel, or `""`."""
    return next((text for text, ops in _HINTS.items() if op in ops.split()), "")


def hazards_of_settings(jit_compile, plugin):
    """Return hazards of how the model was compiled, and of the plugin."""
    hazards = [_XLA_HAZARD] if jit_compile else []
    return hazards + ([_RACE_HAZARD] if plugin is COMMUNITY else [])


def hazards_of_operations(operations, plugin):
    """Return hazards of the ops of a step."""
    return [
        Hazard(code, severity, message, layers=_layer_names(layers))
        for code, severity, message, applies in _OP_HAZARDS
        # Reports of repeated random numbers are about Apple's plugin.
        if plugin is APPLE or code != "random"
        if (layers := [o.layer for o in operations if applies(o)])
    ]


def hazards_of_fusion(nodes, layer_of, plugin, *, on_metal=None):
    """Return hazards of contraction + bias + activation, off the CPU."""
    # Reports of wrong numbers are about Apple's plugin.
    if plugin is not APPLE:
        return []
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
