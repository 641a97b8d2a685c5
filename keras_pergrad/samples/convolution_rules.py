"""The rules of convolution ops: plain, transposed and depthwise.

All are sums over positions: the pixels of a window times a number at the
position. The factor `Patches` describes them by channels-last tensors.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.factors import Patches, Windows
from keras_pergrad.samples.layout import sizes_of
from keras_pergrad.samples.op_rules import op_rule

_PLAIN = ("Conv2D", "Conv3D")
_TRANSPOSED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_DEPTHWISE = ("DepthwiseConv2dNative",)


@op_rule(*_PLAIN, *_DEPTHWISE)
def convolution(use, place):
    """Return the factor of the kernel: Σ over positions of window ⊗ dz."""
    if place != 1:
        return "its input is of weights"
    x, dz = _input(use, 0), use.delta(use.dtype(1))
    if x is None:
        return "its input has no samples"
    return _patches(use, x, dz)


@op_rule(*_TRANSPOSED)
def transposed(use, place):
    """Serve it as a convolution whose input and output change places."""
    if place != 1:
        return "its input is of weights"
    x, dz = _input(use, 2), use.delta(use.dtype(1))
    if x is None:
        return "its input has no samples"
    return _patches(use, dz, x)


def _input(use, place):
    layout = use.input_layout(place)
    if layout is None:
        return None
    x = layout.first(use.op.inputs[place], use.n)
    return tf.cast(x, use.dtype(1))


def _patches(use, big, small):
    shape = use.op.inputs[1].shape.as_list()
    rank = len(shape) - 2
    if use.layout.axis != 0:
        return "the samples are not on its first axis"
    last = not use.attribute("data_format").startswith(b"NC")
    added = use.layout.added
    if added == 2:
        big, small = _joined(big), _joined(small)
        if big is None or small is None:
            return "the sizes of its input are not known when tracing"
        added = 1
    if not last:
        big, small = (_channels_last(t, added) for t in (big, small))
    sizes = big.shape.as_list()[1 + added : -1]
    positions = small.shape.as_list()[1 + added : -1]
    channels = big.shape[-1]
    known = None not in (channels, *shape, *sizes, *positions)
    if channels is None or not known:
        return "the sizes of its input are not known when tracing"
    inner = slice(1, -1) if last else slice(2, None)
    windows = _windows(use, shape[:rank], sizes, positions, inner)
    if added:
        count = big.shape[1]
        if count is None:
            return "the sizes of its input are not known when tracing"
        windows = _with_positions(windows, count)
    groups = channels if use.type in _DEPTHWISE else channels // shape[-2]
    return Patches(big, small, windows, shape, groups)


def _joined(tensor):
    """Return a tensor whose axes 1 and 2 are one, if their size is known."""
    count = tensor.shape[1:3].num_elements()
    if count is None:
        return None
    sizes = sizes_of(tensor)
    found = tf.reshape(tensor, [sizes[0], count, *sizes[3:]])
    found.set_shape([None, count, *tensor.shape[3:]])
    return found


def _channels_last(tensor, added):
    rank = tensor.shape.rank
    return tf.transpose(
        tensor, [*range(1 + added), *range(2 + added, rank), 1 + added]
    )


def _windows(use, kernel, sizes, positions, inner):
    strides = use.attribute("strides")[inner]
    dilation = use.attribute("dilations")[inner]
    padding = use.attribute("padding").decode()
    before, after = [], []
    for k in range(len(kernel)):
        reach = (kernel[k] - 1) * dilation[k] + 1
        missing = (positions[k] - 1) * strides[k] + reach - sizes[k]
        if padding == "EXPLICIT":
            pairs = use.attribute("explicit_paddings")
            at = 2 * (k + (inner.start or 0))
            first = pairs[at]
        else:
            first = max(missing, 0) // 2 if padding == "SAME" else 0
        before.append(first)
        # Pixels at the end that no window reaches need no zeros.
        after.append(max(missing - first, 0))
    parts = kernel, strides, dilation, sizes, positions, before, after
    return Windows(*map(tuple, parts))


def _with_positions(windows, count):
    """Add a dimension for the positions that were merged with the samples."""
    one, none = (1,), (0,)
    return dataclasses.replace(
        windows,
        kernel=one + windows.kernel,
        strides=one + windows.strides,
        dilation=one + windows.dilation,
        sizes=(count, *windows.sizes),
        positions=(count, *windows.positions),
        before=none + windows.before,
        after=none + windows.after,
    )
