import keras
import pytest

from tests.uses.rules.exact import RUNS, assert_exact, normal, stack

layers = keras.layers

SERVED = {
    "dense": (lambda: layers.Dense(2, activation="softmax"), (3, 4)),
    "dense over positions": (lambda: layers.Dense(2), (1, 2, 4)),
    "no bias": (lambda: layers.Dense(2, use_bias=False), (3, 4)),
    "einsum": (
        lambda: layers.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"),
        (2, 3, 4),
    ),
    "conv1d": (lambda: layers.Conv1D(2, 2, activation="tanh"), (3, 4, 2)),
    "conv2d": (
        lambda: layers.Conv2D(3, 2, strides=2, padding="same"),
        (2, 3, 5, 2),
    ),
    "conv2d groups": (lambda: layers.Conv2D(4, 2, groups=2), (2, 3, 3, 4)),
    "depthwise": (lambda: layers.DepthwiseConv2D(2), (3, 3, 3, 2)),
    "transposed": (lambda: layers.Conv2DTranspose(2, 2, 2), (2, 2, 2, 3)),
    "conv3d": (lambda: layers.Conv3D(2, 2), (2, 3, 2, 2, 2)),
    # What is no layer of one op that all steps can share.
    "own forward": (layers.LayerNormalization, (2, 3)),
    "no rule": (lambda: keras.Sequential([layers.Dense(2)]), (2, 3)),
    "activation": (lambda: layers.Dense(2, activation=layers.PReLU()), (2, 3)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SERVED)
def test_time_distributed_is_exact(name):
    make, shape = SERVED[name]
    layer = layers.TimeDistributed(make())
    model = stack(shape, layers.Dense(shape[-1]), layer)
    x = normal(3, *shape)
    assert_exact(model, x, others=[x[:1]])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ["dense", "conv2d"])
def test_however_it_runs(name, run):
    make, shape = SERVED[name]
    layer = layers.TimeDistributed(make())
    assert_exact(stack(shape, layer), normal(3, *shape), run=run)


@pytest.mark.quick
@pytest.mark.usefixtures("float64")
def test_ids_are_grouped_over_all_steps():
    layer = layers.TimeDistributed(layers.Embedding(4, 2))
    ids = keras.ops.convert_to_tensor([[[0, 1], [1, 1]], [[2, 3], [0, 2]]])
    assert_exact(stack((2, 2), layer, dtype="int32"), ids)
