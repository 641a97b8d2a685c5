"""The rules of convolution ops: plain, transposed and depthwise.

All are sums over positions: the pixels of a window times a number at the
position. The factor `Patches` describes them by channels-last tensors.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.factors import Patches, Windows
from keras_pergrad.factors.windows import at_least_zero
from keras_pergrad.factors.written_out import sizes_of
from keras_pergrad.uses.op_rules import op_rule

_PLAIN = ("Conv2D", "Conv3D")
_TRANSPOSED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_DEPTHWISE = ("DepthwiseConv2dNative",)


@op_rule(*_PLAIN, *_DEPTHWISE)
def convolution(use, input_index):
    """Return the factor of the kernel: Σ over positions of window ⊗ dz."""
    if input_index != 1:
        return "its input is of weights"
    x, dz = _input(use, 0), use.delta(use.dtype(1))
    if x is None:
        return "its input has no samples"
    return _patches(use, x, dz)


@op_rule(*_TRANSPOSED)
def transposed_convolution(use, input_index):
    """Return the factor of a convolution with input and output exchanged."""
    if input_index != 1:
        return "its input is of weights"
    x, dz = _input(use, 2), use.delta(use.dtype(1))
    if x is None:
        return "its input has no samples"
    if dz.shape[-1] is None and use.attribute("data_format")[:2] != b"NC":
        # The sizes of its output are a tensor; it has no groups then.
        channels = use.op.inputs[1].shape[-2]
        dz = tf.ensure_shape(dz, [*dz.shape[:-1], channels])
    return _patches(use, dz, x)


def _input(use, input_index):
    layout = use.input_layout(input_index)
    if layout is None:
        return None
    x = layout.first(use.op.inputs[input_index], use.n)
    return tf.cast(x, use.dtype(1))


def _patches(use, big, small):
    shape = use.op.inputs[1].shape.as_list()
    rank = len(shape) - 2
    if use.layout.axis != 0:
        return "the samples are not on its first axis"
    channels_last = not use.attribute("data_format").startswith(b"NC")
    added_axes = use.layout.added_axes
    if added_axes == 2:
        big, small = _merge_positions(big), _merge_positions(small)
        added_axes = 1
    if not channels_last:
        big, small = (_channels_last(t, added_axes) for t in (big, small))
    channels = big.shape[-1]
    if channels is None or None in shape:
        return "the shape of its kernel is not known when tracing"
    spatial_axes = slice(1, -1) if channels_last else slice(2, None)
    spatial = range(1 + added_axes, big.shape.rank - 1)
    sizes, positions = (sizes_of(t, spatial) for t in (big, small))
    windows = _windows(
        use, shape[:rank], sizes, positions=positions, spatial_axes=spatial_axes
    )
    if added_axes:
        windows = _with_positions(windows, sizes_of(big, [1])[0])
    groups = channels if use.type in _DEPTHWISE else channels // shape[-2]
    return Patches(big, small, windows, shape=shape, groups=groups)


def _merge_positions(tensor):
    """Return a tensor whose axes 1 and 2 are one."""
    sizes, static_shape = sizes_of(tensor), tensor.shape
    merged = tf.reshape(tensor, [sizes[0], sizes[1] * sizes[2], *sizes[3:]])
    merged.set_shape(
        [None, static_shape[1:3].num_elements(), *static_shape[3:]]
    )
    return merged


def _channels_last(tensor, added_axes):
    rank = tensor.shape.rank
    return tf.transpose(
        tensor,
        [*range(1 + added_axes), *range(2 + added_axes, rank), 1 + added_axes],
    )


def _windows(use, kernel, sizes, *, positions, spatial_axes):
    strides = use.attribute("strides")[spatial_axes]
    dilation = use.attribute("dilations")[spatial_axes]
    padding = use.attribute("padding").decode()
    before, after = [], []
    for k in range(len(kernel)):
        if padding == "VALID" or (padding == "SAME" and kernel[k] == 1):
            before.append(0)
            after.append(0)
            continue
        kernel_extent = (kernel[k] - 1) * dilation[k] + 1
        # Pixels at the end that no window reaches need no zeros.
        zeros = (positions[k] - 1) * strides[k] + kernel_extent - sizes[k]
        if padding == "EXPLICIT":
            pairs = use.attribute("explicit_paddings")
            leading_zeros = pairs[2 * (k + (spatial_axes.start or 0))]
        else:
            leading_zeros = at_least_zero(zeros) // 2
        before.append(leading_zeros)
        after.append(at_least_zero(zeros - leading_zeros))
    fields = kernel, strides, dilation, sizes, positions, before, after
    return Windows(*map(tuple, fields))


def _with_positions(windows, count):
    """Add a dimension for the positions that were merged with the samples."""
    one, no_zeros = (1,), (0,)
    return dataclasses.replace(
        windows,
        kernel=one + windows.kernel,
        strides=one + windows.strides,
        dilation=one + windows.dilation,
        sizes=(count, *windows.sizes),
        positions=(count, *windows.positions),
        before=no_zeros + windows.before,
        after=no_zeros + windows.after,
    )
