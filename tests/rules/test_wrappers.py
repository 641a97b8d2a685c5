import keras
import pytest

from tests.rules.exact import assert_exact, normal, stack

layers = keras.layers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("shape", [(3, 4), (1, 2, 4)])
@pytest.mark.parametrize("activation", [None, "tanh", "softmax"])
def test_time_distributed_dense_is_exact(shape, activation):
    layer = layers.TimeDistributed(layers.Dense(2, activation=activation))
    assert_exact(stack(shape, layer), normal(3, *shape))


@pytest.mark.usefixtures("float64")
def test_another_child_falls_back():
    layer = layers.TimeDistributed(layers.LayerNormalization())
    model = stack((2, 3), layers.Dense(3), layer)
    assert_exact(model, normal(3, 2, 3), fallback=["TimeDistributed"])
