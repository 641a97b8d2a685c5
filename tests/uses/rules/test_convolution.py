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
    n, fewer = (2, ()) if name in SLOW else (3, (1,))
    x = normal(n, *CASES[name][1])
    assert_exact(model, x, one_by_one=call, fewer=fewer)


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


@pytest.mark.parametrize("name", ["Conv1D", "Conv2D"])
def test_lora_is_exact(name):
    layer = getattr(layers, name)(3, 3, strides=2, lora_rank=2)
    shape = (6, 2) if name == "Conv1D" else (6, 5, 2)
    model = stack(shape, layer)
    assert len(layer.trainable_variables) == 3
    assert_exact(model, normal(3, *shape))
    layer._kernel.trainable = True
    assert_exact(model, normal(3, *shape))


def test_lora_on_groups_is_exact():
    layer = layers.Conv2D(4, 2, groups=2)
    model = stack((4, 4, 4), layer)
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(normal(2, 4))
    assert_exact(model, normal(2, 4, 4, 4))


class Standardized(layers.Conv2D):
    """Changes the kernel in the method that Keras has for it."""

    def convolution_op(self, inputs, kernel):
        kernel -= keras.ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        return super().convolution_op(inputs, kernel)


class Doubled(layers.Conv2D):
    @property
    def kernel(self):
        return 2.0 * self._kernel


@pytest.mark.parametrize("cls", [Standardized, Doubled])
def test_a_subclass_that_changes_the_kernel_is_exact(cls):
    model = stack((5, 4, 2), cls(3, 2))
    assert_exact(model, normal(3, 5, 4, 2))


@pytest.mark.usefixtures("float64")
def test_a_subclass_that_adds_nothing_has_the_rule():
    named = type("Named", (layers.Conv2D,), {})
    assert_exact(stack((5, 4, 2), named(3, 2)), normal(2, 5, 4, 2))


def test_an_unknown_size_is_exact():
    model = stack((None, 2), layers.Conv1D(3, 3), layers.Conv1D(2, 2))
    x = tf.constant(normal(2, 6, 2))
    y = tf.zeros([2, 3, 2])
    model.compile(loss="mse")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, 2]),
            tf.TensorSpec([None, None, 2]),
        ],
        autograph=False,
    )
    def compute(x, y):
        return [f.materialize() for f in _factors(model, x, y)]

    expected = oracle.per_sample_gradients(model, x, y)
    oracle.assert_agree(compute(x, y), [g / 2 for g in expected])


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
        factors = _factors(
            model, x, tf.zeros(model.compute_output_shape(x.shape))
        )
        return [f.materialize() for f in factors]

    return compute(x)


def _factors(model, x, y):
    tape = TracedStep(model, (x, y, None), training=False)
    with tape:
        loss = model._compile_loss(y, tape.forward(x))
    return tape.sample_gradients(loss)
