import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.factors import convolution_method
from keras_pergrad.factors.patches import METHODS
from keras_pergrad.uses import TracedStep
from tests import oracle
from tests.uses.rules.convolution_cases import CASES, FORCED, SLOW, UNDER_XLA
from tests.uses.rules.exact import assert_exact, normal, stack

layers = keras.layers


def _model(name):
    build, shape = CASES[name]
    return stack(shape, build(), layers.Activation("tanh"))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CASES)
def test_is_exact(name):
    model = _model(name)
    # It has a kernel in XLA alone, so that the call is not looked into.
    call = {"StatefulPartitionedCall"} if name == "3d groups" else ()
    x = normal(2 if name in SLOW else 3, *CASES[name][1])
    fewer = [] if name in SLOW else [x[:1]]
    assert_exact(model, x, one_by_one=call, others=fewer)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["1d causal", "2d same", "2d separable"])
def test_is_exact_for_a_known_batch_size(name):
    assert_exact(_model(name), normal(2, *CASES[name][1]), run="known size")


@pytest.mark.parametrize("name", UNDER_XLA)
def test_is_exact_under_xla(name):
    n = 1 if name in SLOW else 2
    assert_exact(_model(name), normal(n, *CASES[name][1]), run="xla")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FORCED)
def test_every_method_is_exact(name, method):
    with convolution_method(method):
        assert_exact(_model(name), normal(3, *CASES[name][1]))


@pytest.mark.parametrize("method", [m for m in METHODS if m != "loop"])
def test_every_method_is_exact_under_xla(method):
    with convolution_method(method):
        model = _model("2d same uneven strides")
        assert_exact(model, normal(2, 7, 6, 2), run="xla")


@pytest.mark.usefixtures("float64")
def test_shared_convolution_is_exact():
    shared = layers.Conv2D(2, 3, padding="same", activation="tanh")
    assert_exact(stack((5, 5, 2), shared, shared), normal(3, 5, 5, 2))


CHANNELS_FIRST = {
    "1d": (layers.Conv1D, {"strides": 2, "padding": "same"}),
    "1d causal": (layers.Conv1D, {"padding": "causal", "activation": "tanh"}),
    "2d": (layers.Conv2D, {"padding": "same"}),
    "2d transposed": (layers.Conv2DTranspose, {"strides": 2}),
    "3d": (layers.Conv3D, {}),
    "2d depthwise": (layers.DepthwiseConv2D, {"padding": "same"}),
    "2d separable": (layers.SeparableConv2D, {"activation": "tanh"}),
}


@pytest.mark.parametrize("cpu_only", [True, False])
@pytest.mark.parametrize("name", CHANNELS_FIRST)
def test_channels_first_is_exact_under_xla(name, cpu_only, monkeypatch):
    """Against single samples under XLA: TensorFlow's CPU ops have no other.

    Where all devices are CPUs, Keras turns some layers' images round itself.
    """
    nn = importlib.import_module("keras.src.backend.tensorflow.nn")
    monkeypatch.setattr(nn, "_cpu_only", lambda: cpu_only, raising=False)
    cls, kwargs = CHANNELS_FIRST[name]
    arguments = {"kernel_size": 3, "data_format": "channels_first", **kwargs}
    if cls is not layers.DepthwiseConv2D:
        arguments["filters"] = 4
    model = stack((2, *(5, 6, 4)[: int(name[0])]), cls(**arguments))
    model.compile(loss="mse")
    x = tf.constant(normal(3, *model.input_shape[1:]))

    @tf.function(jit_compile=True, autograph=False)
    def of_one(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        return tape.gradient(loss, model.trainable_variables)

    singles = [of_one(x[i : i + 1]) for i in range(3)]
    expected = [np.stack(g) / 3 for g in zip(*singles)]
    oracle.assert_agree(_compiled_gradients(model, x), expected)


def test_dilated_transposed_convolution_is_exact_under_xla():
    """Against a twin with zeros between: the CPU has no op for it."""
    twin = stack((3, 4, 2), layers.Conv2DTranspose(3, 3))
    kernel, bias = twin.get_weights()
    kernel[1], kernel[:, 1] = 0, 0
    twin.set_weights([kernel, bias])
    layer = layers.Conv2DTranspose(3, 2, dilation_rate=2)
    model = keras.Sequential([keras.Input((3, 4, 2)), layer])
    model.set_weights([kernel[::2, ::2], bias])
    model.compile(loss="mse")
    twin.compile(loss="mse")
    x = tf.constant(normal(3, 3, 4, 2))
    found = _compiled_gradients(model, x)
    kernels, biases = oracle.per_sample_gradients(
        twin, x, np.zeros(twin(x).shape, "float32")
    )
    expected = [kernels[:, ::2, ::2] / 3, biases / 3]
    oracle.assert_agree(found, expected)


def _compiled_gradients(model, x):
    """What every sample contributes, for targets of zero."""

    @tf.function(jit_compile=True, autograph=False)
    def compute(x):
        y = tf.zeros(model.compute_output_shape(x.shape))
        tape = TracedStep(model, (x, y, None), training=False)
        with tape:
            loss = model._compile_loss(y, tape.forward(x))
        factors = tape.sample_gradients(loss)
        return [f.materialize() for f in factors]

    return compute(x)
