import keras
import pytest
from tensorflow.core.framework import graph_pb2

from keras_pergrad.placement import graph, prediction
from keras_pergrad.placement.operations import Operation

DEVICE = "/job:localhost/replica:0/task:0/device:GPU:0"


def chain(*ops, fused=()):
    """Nodes that feed each other, on a GPU."""
    definition, before = graph_pb2.GraphDef(), None
    for op in ops:
        node = definition.node.add(op=op, name=f"net/dense/{op}")
        node.device = DEVICE
        if before:
            node.input.append(before)
        if op.startswith("_Fused"):
            names = [name.encode() for name in fused]
            node.attr["fused_ops"].list.s.extend(names)
        before = node.name
    return graph.read([definition])


@pytest.fixture
def layer_of():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="dense")], name="net"
    )
    return graph.Layers(model, ["net/dense/MatMul"])


@pytest.mark.parametrize(
    ("ops", "fused", "found"),
    [
        (["_FusedMatMul"], ["BiasAdd", "Relu"], True),
        (["_FusedConv2D"], ["BiasAdd", "Elu"], True),
        (["_FusedMatMul"], ["BiasAdd"], False),
        (["MatMul", "BiasAdd", "Relu"], (), True),
        (["Conv2D", "BiasAdd", "Tanh"], (), True),
        (["MatMul", "BiasAdd", "Mul"], (), False),
        (["MatMul", "AddV2", "Relu"], (), False),
    ],
)
def test_fused_activations(layer_of, ops, fused, found):
    hazard = prediction.hazards_of_fusion(chain(*ops, fused=fused), layer_of)
    assert [h.layers for h in hazard] == [("dense",)] * found
    assert [h.severity for h in hazard] == ["wrong"] * found


def operation(op, *dtypes, kind="cpu"):
    return Operation(op, op, "CPU:0", kind, dtypes, "layer", 1)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (operation("Mul", "float64"), "float64"),
        (operation("AddV2", "int64"), "int64_counter"),
        (operation("CudnnRNNV3", "float32", kind="device"), "cudnn_rnn"),
        (operation("RandomUniform", "float32", kind="device"), "random"),
    ],
)
def test_ops_that_are_known_to_hurt(made, code):
    [hazard] = prediction.hazards_of_operations([made])
    assert (hazard.code, hazard.layers) == (code, ("layer",))


def test_ordinary_ops_are_no_hazard():
    harmless = [
        operation("Mul", "float32", kind="device"),
        operation("AddV2", "int64", kind="generic"),
        operation("StatelessRandomGetKeyCounter", "int64", kind="device"),
    ]
    assert prediction.hazards_of_operations(harmless) == []


def test_the_communitys_plugin_has_its_own_hazards():
    [race] = prediction.hazards_of_settings(False, "metal-community")
    assert (race.code, race.severity) == ("variable_race", "wrong")
    assert "check_gradients" in race.message
    draw = operation("RandomUniform", "float32", kind="device")
    find = prediction.hazards_of_operations
    assert find([draw], "metal-community") == []


def test_only_a_forced_compiler_is_a_hazard():
    assert prediction.hazards_of_settings(False) == []
    assert (
        "jit_compile=False" in prediction.hazards_of_settings(True)[0].message
    )
