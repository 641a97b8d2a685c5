"""Convolution layers by name: how to build one, and its input's shape."""

import functools

import keras


def _case(name, shape, *arguments, **settings):
    """How the layer of this name is built, and its input's shape."""
    cls = getattr(keras.layers, name)
    return functools.partial(cls, *arguments, **settings), shape


SAME, CAUSAL = {"padding": "same"}, {"padding": "causal"}
STRIDED = {"strides": 2, **SAME}
PLAIN, TWICE = {"use_bias": False}, {"dilation_rate": 2}
CASES = {
    "1d": _case("Conv1D", (7, 2), 3, 3),
    "1d same strided": _case("Conv1D", (7, 2), 3, 4, **STRIDED),
    "1d causal": _case("Conv1D", (6, 2), 3, 3, **CAUSAL),
    "1d causal strided": _case("Conv1D", (6, 2), 3, 3, strides=2, **CAUSAL),
    "1d causal dilated": _case("Conv1D", (7, 2), 3, 3, **TWICE, **CAUSAL),
    "1d groups": _case("Conv1D", (6, 4), 6, 3, groups=2),
    "2d": _case("Conv2D", (5, 6, 2), 4, 3),
    "2d no bias": _case("Conv2D", (5, 6, 2), 4, 3, **PLAIN),
    "2d same": _case("Conv2D", (5, 6, 3), 2, (3, 2), **SAME),
    "2d strided": _case("Conv2D", (6, 6, 2), 3, (2, 3), strides=2),
    "2d same uneven strides": _case(
        "Conv2D", (7, 6, 2), 3, 3, strides=(2, 3), **SAME
    ),
    "2d stride over the kernel": _case(
        "Conv2D", (7, 8, 2), 3, 2, strides=3, **SAME
    ),
    "2d one pixel kernel": _case("Conv2D", (3, 4, 2), 3, 1),
    "2d one position": _case("Conv2D", (4, 4, 2), 3, 4),
    "2d dilated": _case("Conv2D", (6, 5, 2), 3, 3, dilation_rate=(2, 1)),
    "2d same dilated": _case("Conv2D", (5, 6, 2), 3, 2, **TWICE, **SAME),
    "2d groups": _case("Conv2D", (5, 5, 6), 6, 3, groups=3),
    "2d groups strided": _case("Conv2D", (5, 6, 4), 4, 3, groups=2, **STRIDED),
    "2d a group a channel": _case("Conv2D", (4, 4, 3), 6, 2, groups=3),
    "3d": _case("Conv3D", (3, 4, 3, 2), 3, 2),
    "3d same strided": _case("Conv3D", (4, 3, 5, 2), 3, (3, 2, 1), **STRIDED),
    "3d groups": _case("Conv3D", (3, 3, 3, 4), 4, 2, groups=2),
    "1d transposed": _case("Conv1DTranspose", (4, 2), 3, 3),
    "1d transposed strided": _case(
        "Conv1DTranspose", (4, 2), 3, 4, strides=3, **SAME
    ),
    "2d transposed": _case("Conv2DTranspose", (3, 4, 2), 3, 3),
    "2d transposed same strided": _case(
        "Conv2DTranspose", (3, 4, 2), 3, 3, **STRIDED
    ),
    "2d transposed output padding": _case(
        "Conv2DTranspose", (3, 4, 2), 3, 3, output_padding=1, **STRIDED, **PLAIN
    ),
    "2d transposed valid output padding": _case(
        "Conv2DTranspose", (3, 3, 2), 3, 2, strides=3, output_padding=(2, 1)
    ),
    "3d transposed": _case("Conv3DTranspose", (2, 3, 2, 3), 2, 2, **STRIDED),
    "1d depthwise": _case("DepthwiseConv1D", (6, 3), 3, depth_multiplier=2),
    "1d depthwise strided": _case("DepthwiseConv1D", (6, 3), 3, **STRIDED),
    "2d depthwise": _case("DepthwiseConv2D", (5, 5, 3), 3, depth_multiplier=2),
    "2d depthwise strided": _case(
        "DepthwiseConv2D", (5, 5, 3), (2, 3), **STRIDED, **PLAIN
    ),
    "2d depthwise dilated": _case(
        "DepthwiseConv2D", (5, 5, 3), 2, **TWICE, **SAME
    ),
    "1d separable": _case("SeparableConv1D", (6, 3), 4, 3, depth_multiplier=2),
    "1d separable strided": _case("SeparableConv1D", (6, 3), 4, 2, **STRIDED),
    "1d separable dilated": _case("SeparableConv1D", (6, 3), 4, 2, **TWICE),
    "2d separable": _case(
        "SeparableConv2D", (5, 5, 3), 4, 3, activation="tanh"
    ),
    "2d separable strided": _case(
        "SeparableConv2D",
        (5, 5, 3),
        4,
        3,
        depth_multiplier=2,
        **STRIDED,
        **PLAIN,
    ),
}

# Keras compiles every single call of a grouped convolution on a CPU.
SLOW = tuple(name for name in CASES if "group" in name)

# A few that differ in how many dimensions, groups and strides they have.
FORCED = (
    "1d causal dilated",
    "2d same",
    "2d same uneven strides",
    "3d same strided",
    "2d transposed same strided",
    "2d depthwise",
)

UNDER_XLA = ("1d causal", "2d same", "2d groups", "2d separable strided")
