import keras
import pytest

from keras_pergrad.analysis.placement.layers import Layers


@pytest.fixture
def model():
    layers = keras.layers
    built = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, name="dense"),
            layers.Dense(3, name="dense_1"),
        ],
        name="net",
    )
    built.compile("adam", "mse")
    return built


def test_plain_scopes(model):
    of = Layers(model, ["net/dense/MatMul", "net/dense_1/MatMul"])
    assert of("net/dense/MatMul") == "dense"
    assert of("gradient_tape/net/dense_1/MatMul_2") == "dense_1"


def test_scopes_that_were_used_before(model):
    of = Layers(model, ["net_1/dense_1/MatMul", "net_1/dense_1_1/MatMul"])
    assert of("net_1/dense_1/MatMul") == "dense"
    assert of("net_1/dense_1_1/MatMul") == "dense_1"


def test_what_belongs_to_no_layer(model):
    of = Layers(model, ["net/dense/MatMul"])
    assert of("Call/adam/Add") == "optimizer"
    assert of("compile_loss/mse/Mean") == "loss"
    assert of("net_1/Erf") == "net"  # of keras.ops between the layers
    assert of("IteratorGetNext") == ""


def test_layers_inside_layers():
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    x = keras.Input((5, 8))
    model = keras.Model(x, attention(x, x), name="net")
    of = Layers(model, ["net/attention/query/einsum"])
    assert of("net/attention/query/einsum") == "attention/query"
