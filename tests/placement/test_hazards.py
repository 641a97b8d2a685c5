import keras
import pytest
from tensorflow.core.framework import graph_pb2

from keras_pergrad.placement import graph, metal
from keras_pergrad.placement.operations import Operation
from keras_pergrad.placement.report import PlacementReport

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
def test_fused_activations(ops, fused, found):
    dense = keras.layers.Dense(3, name="dense")
    model = keras.Sequential([keras.Input((4,)), dense], name="net")
    layer_of = graph.Layers(model, ["net/dense/MatMul"])
    nodes = chain(*ops, fused=fused)
    hazard = metal.hazards_of_fusion(nodes, layer_of, metal.APPLE)
    assert [h.layers for h in hazard] == [("dense",)] * found
    assert [h.severity for h in hazard] == ["wrong"] * found
    report = PlacementReport("GPU:0", "Metal", hazards=hazard)
    known = "known to be wrong on some versions: matmul"
    assert (known in str(report)) == found


@pytest.mark.parametrize(
    ("op", "dtype", "kind", "code"),
    [
        ("Mul", "float64", "cpu", "float64"),
        ("AddV2", "int64", "cpu", "int64_counter"),
        ("CudnnRNNV3", "float32", "device", "cudnn_rnn"),
        ("RandomUniform", "float32", "device", "random"),
        ("Mul", "float32", "device", None),
        ("AddV2", "int64", "generic", None),
        ("StatelessRandomGetKeyCounter", "int64", "device", None),
    ],
)
def test_ops_that_are_known_to_hurt(op, dtype, kind, *, code):
    made = Operation(op, op, "CPU:0", kind=kind, dtypes=(dtype,), layer="layer")
    found = metal.hazards_of_operations([made], metal.APPLE)
    expected = [] if code is None else [(code, ("layer",))]
    assert [(hazard.code, hazard.layers) for hazard in found] == expected
