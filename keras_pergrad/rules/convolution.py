"""Rules of convolutions: plain, transposed, depthwise and separable.

All are sums over positions of a window's pixels times a number at the
position; the factor `Patches` knows them by channels-last tensors.
"""

import keras
import tensorflow as tf

from keras_pergrad.factors import Patches, Sum, Windows
from keras_pergrad.rules.basic import quantized
from keras_pergrad.rules.registry import register_rule


def _unsupported(layer, inputs, *args, **kwargs):
    reason = quantized(layer)
    if getattr(layer, "lora_enabled", False):
        reason = "LoRA is enabled"
    if reason is None and not inputs.shape[1:].is_fully_defined():
        reason = f"the input's shape {inputs.shape} is not known when tracing"
    return reason


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
    yield (
        layer.kernel,
        Patches(x, dz, _windows(layer, x), layer.kernel.shape, layer.groups),
    )
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


for _layer in ("Conv1D", "Conv2D", "Conv3D"):
    register_rule(getattr(keras.layers, _layer), unsupported=_unsupported)(
        convolution
    )
for _layer in ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"):
    register_rule(getattr(keras.layers, _layer), unsupported=_unsupported)(
        transposed
    )
for _layer in ("DepthwiseConv1D", "DepthwiseConv2D"):
    register_rule(getattr(keras.layers, _layer), unsupported=_unsupported)(
        depthwise
    )
