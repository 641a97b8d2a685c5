"""Convolutions over sizes that are not known when tracing."""

import keras
import pytest
import tensorflow as tf

from keras_pergrad.factors import convolution_method
from keras_pergrad.factors.convolution_costs import OF_ANY_SIZE
from tests.marks import few
from tests.uses.own_layer import Folded
from tests.uses.rules.convolution_cases import CASES
from tests.uses.rules.exact import assert_exact, normal, stack

layers = keras.layers

# Kernels that the CPU has in XLA alone, in a call that is not looked into.
LEFT = [name for name in CASES if "groups" in name or "a group" in name]
NAMES = [name for name in CASES if name not in LEFT]
QUICK = ["1d same strided", "2d same uneven strides", "2d same dilated", "3d"]
QUICK += ["2d transposed", "2d depthwise", "2d separable"]


def _model(name):
    """A layer on an input of which only the channels are known."""
    build, shape = CASES[name]
    rank = len(shape) - 1
    pooling = getattr(layers, f"GlobalAveragePooling{rank}D")
    parts = build(), layers.Activation("tanh"), pooling()
    return stack((*[None] * rank, shape[-1]), *parts)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(NAMES, QUICK))
def test_is_exact(name):
    shape = CASES[name][1]
    assert_exact(_model(name), normal(3, *shape), run="any size")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(QUICK, QUICK[1:3]))
def test_is_exact_under_xla(name):
    shape = CASES[name][1]
    assert_exact(_model(name), normal(2, *shape), run="any size, xla")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", OF_ANY_SIZE)
@pytest.mark.parametrize("name", ["2d same uneven strides", "2d depthwise"])
def test_every_method_is_exact(name, method):
    with convolution_method(method):
        shape = CASES[name][1]
        assert_exact(_model(name), normal(3, *shape), run="any size")


FRAMES = {
    "1d": (lambda: layers.Conv1D(2, 2, padding="causal"), (4, 2)),
    "2d": (lambda: layers.Conv2D(2, 2, strides=2, padding="same"), (3, 5, 2)),
    "3d": (lambda: layers.Conv3D(2, 2), (2, 3, 2, 1)),
    "depthwise": (lambda: layers.DepthwiseConv2D(2), (3, 3, 2)),
    "transposed": (lambda: layers.Conv2DTranspose(2, 2, 2), (2, 2, 3)),
}
# TensorFlow itself runs these in a loop over the frames.
IN_A_LOOP = ("3d", "depthwise")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(FRAMES, ["2d", "transposed"]))
def test_any_number_of_frames_is_exact(name):
    make, shape = FRAMES[name]
    model = stack((None, *shape), layers.TimeDistributed(make()))
    loop = ["StatelessWhile"] if name in IN_A_LOOP else []
    right = _counts_frames(model, shape)
    x = normal(4, 5 if right else 4, *shape)
    if right or loop:
        assert_exact(model, x, run="any size", one_by_one=loop)
        return
    with pytest.raises(ValueError, match="which may cut across them"):
        assert_exact(model, x, run="any size")


def _counts_frames(model, shape):
    """Whether the layer loops over frames: Keras 3.15 takes the samples."""
    call = tf.function(model, autograph=False)
    call = call.get_concrete_function(
        tf.TensorSpec([None, None, *shape], tf.float64)
    )
    try:
        return call(normal(2, 3, *shape)).shape[:2] == (2, 3)
    except tf.errors.InvalidArgumentError:
        return False


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("before", [False, True])
def test_frames_and_pixels_of_any_number_are_exact(before):
    layer = Folded(layers.Conv2D(2, 2, padding="same"), before)
    model = stack((None, None, None, 2), layer)
    assert_exact(model, normal(3, 2, 3, 4, 2), run="any size")


def test_a_wide_kernel_is_not_held():
    """Its norms come tap by tap, its sum from the filter gradient."""
    model = stack((None, None, 128), layers.Conv2D(129, 3, padding="same"))
    assert_exact(model, normal(2, 3, 4, 128) / 8, run="any size")


@pytest.mark.usefixtures("float64")
def test_one_trace_serves_images_and_sequences_of_all_sizes():
    convolution = layers.Conv2D(
        3, 3, strides=2, padding="same", activation="relu"
    )
    pooled = convolution, layers.GlobalAveragePooling2D(), layers.Dense(2)
    first, *others = (normal(3, side, side + 1, 2) for side in (4, 5, 8))
    model = stack((None, None, 2), *pooled)
    assert_exact(model, first, run="any size", others=others)
    model = stack((None, 2), layers.Conv1D(3, 3), layers.Conv1D(2, 2))
    others = [normal(2, 9, 2)]
    assert_exact(model, normal(2, 6, 2), run="any size", others=others)
