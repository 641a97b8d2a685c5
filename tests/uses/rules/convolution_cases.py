"""Convolution layers by name: how to build one, and its input's shape."""

import keras

layers = keras.layers

CASES = {
    "1d": (lambda: layers.Conv1D(3, 3), (7, 2)),
    "1d same strided": (
        lambda: layers.Conv1D(3, 4, strides=2, padding="same"),
        (7, 2),
    ),
    "1d causal": (lambda: layers.Conv1D(3, 3, padding="causal"), (6, 2)),
    "1d causal strided": (
        lambda: layers.Conv1D(3, 3, strides=2, padding="causal"),
        (6, 2),
    ),
    "1d causal dilated": (
        lambda: layers.Conv1D(3, 3, padding="causal", dilation_rate=2),
        (7, 2),
    ),
    "1d groups": (lambda: layers.Conv1D(6, 3, groups=2), (6, 4)),
    "2d": (lambda: layers.Conv2D(4, 3), (5, 6, 2)),
    "2d no bias": (lambda: layers.Conv2D(4, 3, use_bias=False), (5, 6, 2)),
    "2d same": (lambda: layers.Conv2D(2, (3, 2), padding="same"), (5, 6, 3)),
    "2d strided": (lambda: layers.Conv2D(3, (2, 3), strides=2), (6, 6, 2)),
    "2d same uneven strides": (
        lambda: layers.Conv2D(3, 3, strides=(2, 3), padding="same"),
        (7, 6, 2),
    ),
    "2d stride over the kernel": (
        lambda: layers.Conv2D(3, 2, strides=3, padding="same"),
        (7, 8, 2),
    ),
    "2d one pixel kernel": (lambda: layers.Conv2D(3, 1), (3, 4, 2)),
    "2d one position": (lambda: layers.Conv2D(3, 4), (4, 4, 2)),
    "2d dilated": (
        lambda: layers.Conv2D(3, 3, dilation_rate=(2, 1)),
        (6, 5, 2),
    ),
    "2d same dilated": (
        lambda: layers.Conv2D(3, 2, dilation_rate=2, padding="same"),
        (5, 6, 2),
    ),
    "2d groups": (lambda: layers.Conv2D(6, 3, groups=3), (5, 5, 6)),
    "2d groups strided": (
        lambda: layers.Conv2D(4, 3, groups=2, strides=2, padding="same"),
        (5, 6, 4),
    ),
    "2d a group a channel": (lambda: layers.Conv2D(6, 2, groups=3), (4, 4, 3)),
    "3d": (lambda: layers.Conv3D(3, 2), (3, 4, 3, 2)),
    "3d same strided": (
        lambda: layers.Conv3D(3, (3, 2, 1), strides=2, padding="same"),
        (4, 3, 5, 2),
    ),
    "3d groups": (lambda: layers.Conv3D(4, 2, groups=2), (3, 3, 3, 4)),
    "1d transposed": (lambda: layers.Conv1DTranspose(3, 3), (4, 2)),
    "1d transposed strided": (
        lambda: layers.Conv1DTranspose(3, 4, strides=3, padding="same"),
        (4, 2),
    ),
    "2d transposed": (lambda: layers.Conv2DTranspose(3, 3), (3, 4, 2)),
    "2d transposed same strided": (
        lambda: layers.Conv2DTranspose(3, 3, strides=2, padding="same"),
        (3, 4, 2),
    ),
    "2d transposed output padding": (
        lambda: layers.Conv2DTranspose(
            3, 3, strides=2, padding="same", output_padding=1, use_bias=False
        ),
        (3, 4, 2),
    ),
    "2d transposed valid output padding": (
        lambda: layers.Conv2DTranspose(3, 2, strides=3, output_padding=(2, 1)),
        (3, 3, 2),
    ),
    "3d transposed": (
        lambda: layers.Conv3DTranspose(2, 2, strides=2, padding="same"),
        (2, 3, 2, 3),
    ),
    "1d depthwise": (
        lambda: layers.DepthwiseConv1D(3, depth_multiplier=2),
        (6, 3),
    ),
    "1d depthwise strided": (
        lambda: layers.DepthwiseConv1D(3, strides=2, padding="same"),
        (6, 3),
    ),
    "2d depthwise": (
        lambda: layers.DepthwiseConv2D(3, depth_multiplier=2),
        (5, 5, 3),
    ),
    "2d depthwise strided": (
        lambda: layers.DepthwiseConv2D(
            (2, 3), strides=2, padding="same", use_bias=False
        ),
        (5, 5, 3),
    ),
    "2d depthwise dilated": (
        lambda: layers.DepthwiseConv2D(2, dilation_rate=2, padding="same"),
        (5, 5, 3),
    ),
    "1d separable": (
        lambda: layers.SeparableConv1D(4, 3, depth_multiplier=2),
        (6, 3),
    ),
    "1d separable strided": (
        lambda: layers.SeparableConv1D(4, 2, strides=2, padding="same"),
        (6, 3),
    ),
    "1d separable dilated": (
        lambda: layers.SeparableConv1D(4, 2, dilation_rate=2),
        (6, 3),
    ),
    "2d separable": (
        lambda: layers.SeparableConv2D(4, 3, activation="tanh"),
        (5, 5, 3),
    ),
    "2d separable strided": (
        lambda: layers.SeparableConv2D(
            4, 3, strides=2, padding="same", depth_multiplier=2, use_bias=False
        ),
        (5, 5, 3),
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
