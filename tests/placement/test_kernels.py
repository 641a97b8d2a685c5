import pathlib
import re
import tomllib

import pytest
import tensorflow as tf
from packaging import requirements, specifiers
from tensorflow.core.framework import node_def_pb2

from keras_pergrad.placement import kernels, metal
from tests.metal_stub import build

ROOT = pathlib.Path(__file__).parents[2]


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
    said = kernels.reason(node(op, **types), names, "METAL", platform="Metal")
    assert re.match(reason, said)


APPLES, COMMUNITYS, FLOAT = [metal.APPLE], [metal.COMMUNITY], tf.float32
OWN = [metal.APPLE, {"Tile": ["float16"]}]


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
def test_what_a_table_serves(table, op, types, *, kind):
    assert kernels.table_of(*table).serving(node(op, **types)) == kind


def test_the_plugin_that_drives_metal_is_the_installed_one(monkeypatch):
    assert metal.installed() is metal.APPLE
    monkeypatch.setattr(metal.importlib.metadata, "version", str)
    assert metal.installed() is metal.COMMUNITY


def test_the_extras_install_what_fits():
    """pip asks what `pyproject.toml` says; all else asks `metal.py`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for extra, plugin in metal.PLUGINS.items():
        wanted = declared["project"]["optional-dependencies"][extra]
        asked = {r.name: r for r in map(requirements.Requirement, wanted)}
        assert set(asked) == {"tensorflow", plugin.package}
        assert str(asked[plugin.package].specifier) == f"=={plugin.version}"
        assert f'"keras-pergrad[{extra}]"' in plugin.install
        release = tuple(map(int, plugin.version.split(".")[:2]))
        first, after = plugin.bounds[release]
        bounds = asked["tensorflow"].specifier
        assert bounds == specifiers.SpecifierSet(
            f">={first[0]}.{first[1]},<{after[0]}.{after[1]}"
        )
        for python in ("3.11", "3.12", "3.13"):
            mac = {"sys_platform": "darwin", "platform_machine": "arm64"}
            minor = tuple(map(int, python.split(".")))
            has = plugin.python[0] <= minor < plugin.python[1]
            for requirement in asked.values():
                here = {**mac, "python_version": python}
                assert requirement.marker.evaluate(here) == has


def test_the_table_of_generic_kernels_is_tensorflows():
    """In the wheel without CUDA it is exact; others have some more."""
    table = kernels.table_of(metal.APPLE).generic
    devices = {
        op: {kernel.device_type for kernel in kernels.registered(op)}
        for op in table
    }
    assert [op for op in table if not {"DEFAULT", "GPU"} & devices[op]] == []
    if build.wheel().startswith("tensorflow-cpu"):
        # Data sets, and one op for whole numbers.
        for op in table:
            if "GPU" in devices[op] and not kernels.owned_by_tensorflow(op):
                assert "Dataset" in op or op == "SquaredDifference"
