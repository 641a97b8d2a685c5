"""Rules of convolutions: plain, transposed, depthwise and separable.

All are sums over positions of a window's pixels times a number at the
position; the factor `Patches` knows them by channels-last tensors.
"""

import keras
import tensorflow as tf
from keras import ops

from keras_pergrad.factors import Outer, Patches, Sum, Windows
from keras_pergrad.rules import lora
from keras_pergrad.rules.basic import quantized
from keras_pergrad.rules.registry import register_rule


def _unsupported(layer, inputs, *args, **kwargs):
    reason = quantized(layer)
    if getattr(layer, "lora_enabled", False) and layer.groups > 1:
        reason = "LoRA is enabled on groups"
    if reason is None and not inputs.shape[1:].is_fully_defined():
        reason = f"the input's shape {inputs.shape} is not known when tracing"
    return reason


def _separable_unsupported(layer, inputs, *args, **kwargs):
    if isinstance(layer.activation, keras.Layer):
        return "its activation is a layer"
    return _unsupported(layer, inputs)


def _channels_last(layer, tensor):
    if layer.data_format == "channels_last":
        return tensor
    return tf.transpose(tensor, [0, *range(2, tensor.shape.rank), 1])


def _windows(layer, big):
    return Windows.of(
        tuple(big.shape[1:-1]),
        layer.kernel_size,
        layer.strides,
        layer.dilation_rate,
        layer.padding,
    )


def convolution(layer, inputs, dz):
    """kernel: sum over positions of window ⊗ dz; bias: sum of dz."""
    x, dz = _channels_last(layer, inputs), _channels_last(layer, dz)
    windows = _windows(layer, x)
    if layer.lora_enabled:
        yield from lora.convolution_kernel(layer, x, dz, windows)
    else:
        shape = layer.kernel.shape
        yield layer.kernel, Patches(x, dz, windows, shape, layer.groups)
    if layer.use_bias:
        yield layer.bias, Sum(dz)


def transposed(layer, inputs, dz):
    """As a convolution whose input and output change places."""
    x, dz = _channels_last(layer, inputs), _channels_last(layer, dz)
    yield (
        layer.kernel,
        Patches(dz, x, _windows(layer, dz), layer.kernel.shape),
    )
    if layer.use_bias:
        yield layer.bias, Sum(dz)


def depthwise(layer, inputs, dz):
    """As a convolution with a group for each channel."""
    x, dz = _channels_last(layer, inputs), _channels_last(layer, dz)
    yield layer.kernel, _depthwise(layer, x, dz, layer.kernel)
    if layer.use_bias:
        yield layer.bias, Sum(dz)


def _depthwise(layer, x, dz, kernel):
    windows = _windows(layer, x)
    return Patches(x, dz, windows, kernel.shape, x.shape[-1])


def _separated(layer, call, watch, inputs):
    """Both convolutions one by one, so that what is between is seen."""
    x = _channels_last(layer, inputs)
    between = watch(
        ops.depthwise_conv(
            x,
            layer.depthwise_kernel,
            strides=layer.strides,
            padding=layer.padding,
            data_format="channels_last",
            dilation_rate=layer.dilation_rate,
        )
    )
    outputs = ops.conv(
        between, layer.pointwise_kernel, data_format="channels_last"
    )
    if layer.use_bias:
        outputs = ops.add(outputs, layer.bias)
    outputs = watch(outputs)
    if layer.data_format != "channels_last":
        last = outputs.shape.rank - 1
        outputs = tf.transpose(outputs, [0, last, *range(1, last)])
    if layer.activation is not None:
        outputs = layer.activation(outputs)
    return outputs, (x, between)


def separable(layer, inputs, dz):
    """A depthwise kernel, then a Dense one at every position."""
    (x, between), (dbetween, dz) = inputs, dz
    yield (
        layer.depthwise_kernel,
        _depthwise(layer, x, dbetween, layer.depthwise_kernel),
    )
    shape = layer.pointwise_kernel.shape
    yield layer.pointwise_kernel, Outer(between, dz, shape)
    if layer.use_bias:
        yield layer.bias, Sum(dz)


def _register(rule, *names, unsupported=_unsupported, **kwargs):
    for name in names:
        layer_class = getattr(keras.layers, name)
        register_rule(layer_class, unsupported=unsupported, **kwargs)(rule)


_register(convolution, "Conv1D", "Conv2D", "Conv3D")
_register(transposed, "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
_register(depthwise, "DepthwiseConv1D", "DepthwiseConv2D")
_register(
    separable,
    "SeparableConv1D",
    "SeparableConv2D",
    forward=_separated,
    unsupported=_separable_unsupported,
)
