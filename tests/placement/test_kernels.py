import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from keras_pergrad.placement import kernels
from tests.metal_stub import build


def node(op, **types):
    definition = node_def_pb2.NodeDef(op=op, name=op)
    for key, dtype in types.items():
        definition.attr[key].type = dtype.as_datatype_enum
    return definition


def test_kernels_of_this_process():
    for device, dtype, kind in (
        ("CPU", tf.float32, "device"),
        ("CPU", tf.string, "none"),
        ("NONE", tf.float32, "none"),
    ):
        assert kernels.kernel_kind(node("MatMul", T=dtype), device) == kind
    read = node("ReadVariableOp", dtype=tf.float32)
    assert kernels.kernel_kind(read, "METAL") == "generic"


@pytest.mark.parametrize(
    ("op", "types", "reason"),
    [
        ("MatMul", {"T": tf.float32}, "no Metal kernel$"),
        ("AddV2", {"T": tf.int64}, r".*for int64 \(only int32"),
        ("IteratorGetNext", {}, "host-only op$"),
        ("Identity", {"T": tf.string}, "host-only op$"),
        # A kernel that is not used is said.
        ("ReadVariableOp", {"dtype": tf.float32}, ".*has a kernel"),
    ],
)
def test_reasons(op, types, reason):
    names = tuple(t.name for key, t in types.items() if key == "T")
    said = kernels.reason(node(op, **types), names, "METAL", "Metal")
    assert re.match(reason, said)


APPLES, FLOAT = {}, tf.float32
COMMUNITYS = {"platform": "metal-community"}
OWN = {"kernels": {"Tile": ["float16"]}}


@pytest.mark.parametrize(
    ("table", "op", "types", "kind"),
    [
        (APPLES, "MatMul", {"T": tf.float32}, "device"),
        (APPLES, "MatMul", {"T": tf.float64}, "none"),
        (APPLES, "AddV2", {"T": tf.int32}, "generic"),
        (APPLES, "AddV2", {"T": tf.int64}, "none"),
        (APPLES, "Cast", {"SrcT": tf.float32, "DstT": tf.int64}, "device"),
        (APPLES, "Cast", {"SrcT": tf.float64, "DstT": tf.float32}, "none"),
        (APPLES, "RandomUniform", {"T": tf.int32, "dtype": FLOAT}, "device"),
        (APPLES, "Tile", {"T": tf.float32}, "device"),
        (OWN, "Tile", {"T": tf.float32}, "none"),
        (COMMUNITYS, "MatMul", {"T": tf.float16}, "device"),
        (COMMUNITYS, "MatMul", {"T": tf.bfloat16}, "none"),
        (COMMUNITYS, "Conv3D", {"T": tf.float32}, "device"),
        (COMMUNITYS, "BatchMatMulV3", {"Ta": tf.float32}, "device"),
        # TensorFlow 2.21 gives a plugin no way to a variable.
        (COMMUNITYS, "AssignSubVariableOp", {"dtype": tf.float32}, "generic"),
    ],
)
def test_what_a_table_serves(table, op, types, kind):
    assert kernels.metal(**table).serving(node(op, **types)) == kind


def test_the_plugin_that_drives_metal_is_the_installed_one(monkeypatch):
    assert kernels.installed_platform() == "metal"
    monkeypatch.setattr(kernels.importlib.metadata, "version", str)
    assert kernels.installed_platform() == "metal-community"


def test_the_table_of_generic_kernels_is_tensorflows():
    """In the wheel without CUDA it is exact; others have some more."""
    table = kernels.metal().generic
    missing = {
        op
        for op in table
        if not any(
            k.device_type in ("DEFAULT", "GPU") for k in kernels.registered(op)
        )
    }
    assert missing == set()
    if build.wheel().startswith("tensorflow-cpu"):
        gpu = {
            op
            for op in table
            for k in kernels.registered(op)
            if k.device_type == "GPU" and not kernels.owned_by_tensorflow(op)
        }
        # Data sets, and one op for whole numbers.
        assert {op for op in gpu if "Dataset" not in op} <= {
            "SquaredDifference"
        }
