"""Convolutions over sizes that are not known when tracing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.factors import convolution_method
from keras_pergrad.factors.convolution_costs import OF_ANY_SIZE
from tests import oracle
from tests.marks import few
from tests.uses.rules.convolution_cases import CASES
from tests.uses.rules.exact import assert_exact, normal, randomized

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
    inputs = keras.Input((*[None] * rank, shape[-1]))
    outputs = layers.Activation("tanh")(build()(inputs))
    pooling = getattr(layers, f"GlobalAveragePooling{rank}D")
    return randomized(keras.Model(inputs, pooling()(outputs)))


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
    inputs = keras.Input((None, *shape))
    outputs = layers.TimeDistributed(make())(inputs)
    model = randomized(keras.Model(inputs, outputs))
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


class Folded(layers.Layer):
    """Folds frames, behind the samples or before them, into their axis."""

    def __init__(self, frames_first):
        super().__init__()
        self.frames_first = frames_first
        self.inner = layers.Conv2D(2, 2, padding="same")

    def build(self, shape):
        self.inner.build((None, *shape[2:]))

    def call(self, x):
        axes = [1, 0, *range(2, x.shape.rank)]
        x = tf.transpose(x, axes) if self.frames_first else x
        sizes = tf.shape(x)
        x = tf.reshape(x, tf.concat([[-1], sizes[2:]], 0))
        x = self.inner(tf.ensure_shape(x, [None, None, None, 2]))
        x = tf.reshape(x, tf.concat([sizes[:2], tf.shape(x)[1:]], 0))
        return tf.transpose(x, axes) if self.frames_first else x

    def compute_output_shape(self, shape):
        return (*shape[:-1], 2)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("frames_first", [False, True])
def test_frames_and_pixels_of_any_number_are_exact(frames_first):
    inputs = keras.Input((None, None, None, 2))
    model = keras.Model(inputs, Folded(frames_first)(inputs))
    assert_exact(randomized(model), normal(3, 2, 3, 4, 2), run="any size")


def test_a_wide_kernel_is_not_held():
    """Its norms come tap by tap, its sum from the filter gradient."""
    inputs = keras.Input((None, None, 128))
    outputs = layers.Conv2D(129, 3, padding="same")(inputs)
    model = randomized(keras.Model(inputs, outputs))
    assert_exact(model, normal(2, 3, 4, 128) / 8, run="any size")


def test_one_trace_serves_images_of_all_sizes():
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")(
        inputs
    )
    outputs = layers.Dense(2)(layers.GlobalAveragePooling2D()(x))
    model = randomized(keras.Model(inputs, outputs))
    model.compile("sgd", "mse")
    for size in (4, 5, 8):
        x, y = normal(3, size, size + 1, 2), normal(3, 2)
        found = kpg.per_sample_gradients(model, x, y)
        expected = oracle.per_sample_gradients(model, x, y)
        oracle.assert_agree([np.asarray(g) for g in found], expected)
