"""The kernel that runs a node on a device, or the reason why none does.

The kernels of this process are in TensorFlow's registry, those of a Mac in
tables that ship with the package (`metal.py` says which): op → types
(`"from->to"` for Cast, `"any"` where nothing is constrained).
`tensorflow_generic_kernels.json` holds what
TensorFlow registers by itself for any pluggable device, in a wheel without
CUDA: op → a list of type constraints. Its kernels are host code.
"""

import dataclasses
import functools
import importlib.resources
import json
import reprlib
from collections.abc import Mapping

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.runs import op_types
from keras_pergrad.keras_internals.tensorflow.kernels import registered_kernels
from keras_pergrad.placement.graph import type_names

# A kernel of the accelerator; TensorFlow's host code, run in its name; none.
DEVICE, GENERIC, NONE = "device", "generic", "none"

# Kernels that TensorFlow registers for "GPU" itself, even in wheels without
# CUDA. They pass tensors on, or hand whole graphs to XLA: none of them is the
# plugin's. Those for the data pipeline and XLA are matched by prefix.
_TENSORFLOW_GPU_OPS = op_types(
    "BatchFunction CheckPinned DebugGradientIdentity DeserializeSparse "
    "DummyIterationCounter Enter Exit Fact GetOptions Identity "
    "IsTensorFloat32Enabled MakeIterator Merge NextIteration "
    "PlaceholderWithDefault PreventGradient RaggedTensorFromVariant Reshape "
    "StopGradient Switch UnwrapDatasetVariant WrapDatasetVariant _SwitchN"
)
_TENSORFLOW_GPU_PREFIXES = tuple(
    op_types(
        "AnonymousIterator Collective DeleteIterator Iterator Optional Ref "
        "TensorArray Xla _EagerConst _ScopedAllocator _Xla"
    )
)
# Ops that live on the host whatever the accelerator: they talk to Python,
# to files or to the data pipeline.
_HOST_PREFIXES = tuple(
    op_types(
        "AnonymousIterator Assert DeleteIterator EagerPyFunc Iterator Optional "
        "Print PyFunc String Timestamp WriteSummary"
    )
)
_HOST_SUFFIXES = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4", "Summary")
_HOST_TYPES = {"string"}
USER_TABLE = "a table of your own"


@functools.cache
def registered(op):
    """Return the kernels registered for an op, in this process."""
    return registered_kernels(op)


def _allows(kernel, attr):
    """Whether a kernel's type constraints admit a node's attributes."""
    for constraint in kernel.constraint:
        allowed = constraint.allowed_values.list.type
        if not allowed or constraint.name not in attr:
            continue
        value = attr[constraint.name]
        types = value.list.type or [value.type]
        if any(t not in allowed for t in types):
            return False
    return True


def owned_by_tensorflow(op):
    """Whether TensorFlow has a "GPU" kernel for the op without any GPU."""
    return op in _TENSORFLOW_GPU_OPS or op.startswith(_TENSORFLOW_GPU_PREFIXES)


def kernel_kind(definition, device_type):
    """Return what would run a `NodeDef` on this type of device, or "none"."""
    types = {
        kernel.device_type
        for kernel in registered(definition.op)
        if _allows(kernel, definition.attr)
    }
    if device_type in types:
        return GENERIC if owned_by_tensorflow(definition.op) else DEVICE
    return GENERIC if "DEFAULT" in types else NONE


def is_host_op(op, dtypes=()):
    """Whether an op belongs on the host in any case."""
    return (
        op.startswith(_HOST_PREFIXES)
        or op.endswith(_HOST_SUFFIXES)
        or bool(_HOST_TYPES.intersection(dtypes))
    )


def reason(definition, dtypes, device_type, *, platform):
    """Return why a node is on the CPU although there is an accelerator."""
    if is_host_op(definition.op, dtypes):
        return "host-only op"
    if kernel_kind(definition, device_type) != NONE:
        return (
            f"{platform} has a kernel: TensorFlow kept it beside a tensor "
            f"on the CPU, or the program asked for the CPU"
        )
    types = (device_type, "DEFAULT")
    registered_here = registered(definition.op)
    kernels = [
        kernel for kernel in registered_here if kernel.device_type in types
    ]
    if not kernels:
        return f"no {platform} kernel"
    refused_types = _refused_types(definition, kernels)
    if not refused_types:
        return f"no {platform} kernel for {'/'.join(dtypes)} together"
    return f"no {platform} kernel for " + ", ".join(
        f"{dtype} (only {', '.join(sorted(types))})"
        for dtype, types in refused_types.items()
    )


def _refused_types(definition, kernels):
    """Return the types that no kernel takes → the types taken instead."""
    # A kernel may be chosen by several types (data, indices); most are fine.
    refused_types = {}
    for attr, value in definition.attr.items():
        allowed = [
            constraint.allowed_values.list.type
            for kernel in kernels
            for constraint in kernel.constraint
            if constraint.name == attr
        ]
        # A kernel without a constraint on this attribute takes every type.
        is_free = len(allowed) < len(kernels)
        accepted = {t for types in allowed for t in types}
        if not is_free and value.type and value.type not in accepted:
            names = {tf.dtypes.as_dtype(t).name for t in accepted}
            refused_types[tf.dtypes.as_dtype(value.type).name] = names
    return refused_types


@functools.cache
def _load_table(name):
    folder = importlib.resources.files("keras_pergrad.placement")
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
        types, dtype = self.kernels.get(op), data_type(definition)
        if types and (dtype is None or "any" in types or dtype in types):
            return DEVICE
        generic = self.generic.get(op, ())
        return (
            GENERIC
            if any(_meets_constraints(definition, c) for c in generic)
            else NONE
        )

    def known_types(self, op):
        """Return the types for which the table has the op."""
        types = set(self.kernels.get(op, ()))
        for constraints in self.generic.get(op, ()):
            types.update(*constraints.values())
        return sorted(types)


def table_of(plugin, kernels=None):
    """Return the table of a plugin for Metal, or of the user's kernels."""
    generic = _load_table("tensorflow_generic_kernels.json")
    if kernels is not None:
        if not isinstance(kernels, Mapping) or not all(
            isinstance(types, (list, tuple)) for types in kernels.values()
        ):
            raise TypeError(
                "`kernels_table` expected a dict from ops to lists of types, "
                "such as {'MatMul': ['float32', 'float16']}. Received: "
                f"kernels_table={reprlib.repr(kernels)}"
            )
        return Table(USER_TABLE, dict(kernels), generic)
    kernels = {**_load_table(plugin.kernels), **plugin.free_kernels}
    return Table(plugin.release, kernels, generic)


def _type_name(definition, key):
    if key not in definition.attr:
        return None
    return tf.dtypes.as_dtype(definition.attr[key].type).name


def data_type(definition):
    """Return the type an op computes in, as the table lists it."""
    if "SrcT" in definition.attr:
        source = _type_name(definition, "SrcT")
        target = _type_name(definition, "DstT")
        return f"{source}->{target}"
    # A random op's T is the type of its shape.
    random = definition.op.startswith(("Random", "Stateless", "Truncated"))
    keys = ("dtype", "T") if random else ("T", "dtype")
    names = [_type_name(definition, key) for key in (*keys, "Tparams", "Tidx")]
    return next(filter(None, [*names, *type_names(definition)]), None)


def _meets_constraints(definition, constraints):
    return all(
        _type_name(definition, attr) in (None, *types)
        for attr, types in constraints.items()
    )
