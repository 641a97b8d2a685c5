"""The kernels that a Mac has, as tables that ship with the package.

`tensorflow_metal_1_2_0_kernels.json` was extracted from the plugin's binary:
op → types (`"from->to"` for Cast, `"any"` where nothing is constrained).
`tensorflow_generic_kernels.json` holds what TensorFlow registers by itself
for any pluggable device, in a wheel without CUDA: op → a list of type
constraints. Its kernels are host code.
"""

import dataclasses
import functools
import importlib.resources
import json

import tensorflow as tf

from keras_pergrad.analysis.placement.graph import type_names
from keras_pergrad.analysis.placement.kernels import DEVICE, GENERIC, NONE

METAL_VERSION = "tensorflow-metal 1.2.0"
OWN = "a table of your own"
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


def hint(op):
    """Return what to use in place of an op without a kernel, or `""`."""
    return next((h for h, ops in _HINTS.items() if op in ops.split()), "")


@functools.cache
def _load(name):
    folder = importlib.resources.files("keras_pergrad.analysis.placement")
    return json.loads((folder / name).read_text())


@dataclasses.dataclass(frozen=True)
class Table:
    """The kernels of a plugin, and TensorFlow's own for it.

    Attributes:
        version: what the table describes.
        kernels: op → names of types.
        generic: op → list of constraints, each attribute → names of types.
    """

    version: str
    kernels: dict
    generic: dict

    def serving(self, definition, op=None):
        """Return what would run a node: `"device"`, `"generic"` or `"none"`."""
        op = op or definition.op
        types, wanted = self.kernels.get(op), data_type(definition)
        if types and (wanted is None or "any" in types or wanted in types):
            return DEVICE
        generic = self.generic.get(op, ())
        return GENERIC if any(_allows(definition, c) for c in generic) else NONE

    def known_types(self, op):
        """Return the types for which the table has the op."""
        types = set(self.kernels.get(op, ()))
        for constraints in self.generic.get(op, ()):
            types.update(*constraints.values())
        return sorted(types)


def metal(kernels=None):
    """Return the table of tensorflow-metal 1.2.0, or of the user's kernels."""
    generic = _load("tensorflow_generic_kernels.json")
    if kernels is not None:
        return Table(OWN, kernels, generic)
    kernels = _load("tensorflow_metal_1_2_0_kernels.json")
    # Which data the plugin's Tile takes cannot be read from its binary.
    return Table(METAL_VERSION, {**kernels, "Tile": ["any"]}, generic)


def _type(definition, key):
    if key not in definition.attr:
        return None
    return tf.dtypes.as_dtype(definition.attr[key].type).name


def data_type(definition):
    """Return the type an op computes in, as the table lists it."""
    if "SrcT" in definition.attr:
        source, target = _type(definition, "SrcT"), _type(definition, "DstT")
        return f"{source}->{target}"
    # A random op's T is the type of its shape.
    random = definition.op.startswith(("Random", "Stateless", "Truncated"))
    keys = ("dtype", "T") if random else ("T", "dtype")
    names = [_type(definition, key) for key in (*keys, "Tparams", "Tidx")]
    return next(filter(None, [*names, *type_names(definition)]), None)


def _allows(definition, constraints):
    return all(
        _type(definition, attr) in (None, *types)
        for attr, types in constraints.items()
    )
