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
    assert kernels.kernel_kind(node("MatMul", T=tf.float32), "CPU") == "device"
    assert kernels.kernel_kind(node("MatMul", T=tf.string), "CPU") == "none"
    assert kernels.kernel_kind(node("MatMul", T=tf.float32), "NONE") == "none"
    read = node("ReadVariableOp", dtype=tf.float32)
    assert kernels.kernel_kind(read, "METAL") == "generic"


def test_reasons():
    matmul = node("MatMul", T=tf.float32)
    add = node("AddV2", T=tf.int64)
    reason = kernels.reason
    assert reason(matmul, ("float32",), "METAL", "Metal") == "no Metal kernel"
    assert "for int64 (only int32" in reason(add, ("int64",), "METAL", "Metal")
    batch = node("IteratorGetNext")
    assert reason(batch, (), "METAL", "Metal") == "host-only op"
    text = node("Identity", T=tf.string)
    assert reason(text, ("string",), "METAL", "Metal") == "host-only op"


def test_a_kernel_that_is_not_used_is_said():
    read = node("ReadVariableOp", dtype=tf.float32)
    assert "has a kernel" in kernels.reason(read, (), "METAL", "Metal")


def test_metals_table():
    table = kernels.metal()
    assert table.version == "tensorflow-metal 1.2.0"
    assert table.serving(node("MatMul", T=tf.float32)) == "device"
    assert table.serving(node("MatMul", T=tf.float64)) == "none"
    assert table.serving(node("AddV2", T=tf.int32)) == "generic"
    assert table.serving(node("AddV2", T=tf.int64)) == "none"
    cast = node("Cast", SrcT=tf.float32, DstT=tf.int64)
    assert table.serving(cast) == "device"
    wide = node("Cast", SrcT=tf.float64, DstT=tf.float32)
    assert table.serving(wide) == "none"
    draw = node("RandomUniform", T=tf.int32, dtype=tf.float32)
    assert table.serving(draw) == "device"
    assert len(table.kernels) == 184


def test_the_table_of_the_communitys_plugin():
    table = kernels.metal(platform="metal-community")
    assert table.version == "tensorflow-metal-plugin 0.4.1"
    assert len(table.kernels) == 268
    assert table.serving(node("MatMul", T=tf.float16)) == "device"
    assert table.serving(node("MatMul", T=tf.bfloat16)) == "none"
    assert table.serving(node("Conv3D", T=tf.float32)) == "device"
    assert table.serving(node("BatchMatMulV3", Ta=tf.float32)) == "device"
    # TensorFlow 2.21 gives a plugin no way to a variable.
    assign = node("AssignSubVariableOp", dtype=tf.float32)
    assert table.serving(assign) == "generic"


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
