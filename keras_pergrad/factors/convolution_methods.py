"""Methods for a convolution kernel's per-sample gradients and norms.

n sample, T position, K tap, g group, i input and o output channels of a
group. `big` is (n, *sizes, g·i), `small` is (n, T, g·o), and a gradient is
(n, K·i, g·o): Σ_T big at the tap ⊗ small.

With one group and few outputs, `patches` returns its transpose: a matmul is up
to a third faster when the last axis of its result is not short.
"""

import math

import numpy as np
import tensorflow as tf

from keras_pergrad.factors.rounding import squares_of_products
from keras_pergrad.factors.written_out import (
    integers,
    sizes_of,
    squares_by_sample,
)
from keras_pergrad.keras_internals.tensorflow.settings import in_xla

SHORT_AXIS = 16
#: XLA takes long to compile a slice and a matmul for each of more taps.
MANY_TAPS = 16


def taps(big, small, windows, *, groups):
    """Return the gradients by one matmul for each tap, on an input slice."""
    if in_xla() and _gains_by_blocks(windows, groups):
        gradients = taps(
            windows.as_blocks(big), small, windows.of_blocks(), groups=groups
        )
        return windows.from_blocks(gradients, big.shape[-1])
    # No stack and reshape: Metal has a kernel only for concat.
    parts = list(_tap_gradients(big, small, windows, groups=groups))
    gradients = parts[0] if len(parts) == 1 else tf.concat(parts, 1)
    if gradients.shape.rank == 3:
        return gradients
    return tf.reshape(gradients, [-1, gradients.shape[1], small.shape[-1]])


def _gains_by_blocks(windows, groups):
    """Whether the strides join many taps to few."""
    if groups > 1 or windows.is_dilated or not windows.is_static:
        return False
    fewer = windows.of_blocks().taps <= windows.taps / 2
    return windows.taps > MANY_TAPS and fewer


def tap_norms(big, small, windows, *, groups):
    """Return squared norms, added tap by tap: no gradient is held."""
    parts = _tap_gradients(big, small, windows, groups=groups)
    return tf.add_n([squares_by_sample(part) for part in parts])


def _tap_gradients(big, small, windows, *, groups):
    """Yield the gradients of each tap, (n, i, g·o)."""
    if is_depthwise(groups, big.shape[-1]):
        if is_one_op(windows, in_xla()):
            yield _depthwise_taps(big, small, windows)
        else:
            yield from _depthwise_by_tap(big, small, windows)
        return
    small = split(small, groups)
    for pixels in windows.slices(windows.pad(big)):
        yield merge(_product(split(pixels, groups), small), groups)


def _depthwise_taps(big, small, windows):
    """Return all taps, (n, K, g·o), by one op, for groups of one channel.

    It is the depthwise convolution of one image, with a channel for each
    sample and group, by the output gradients.
    """
    unit_axes = [1] * (2 - windows.rank)
    channels, filters = big.shape[-1], small.shape[-1]
    images, gradients = (
        tf.transpose(
            tf.reshape(t, integers(-1, *unit_axes, *sizes, t.shape[-1])),
            integers(1, 2, 0, 3),
        )
        for t, sizes in (
            (windows.pad(big), windows.padded_sizes),
            (small, windows.positions),
        )
    )
    step = windows.dilation[-1]
    all_taps = tf.raw_ops.DepthwiseConv2dNative(
        input=tf.reshape(
            images, integers(1, *unit_axes, *windows.padded_sizes, -1)
        ),
        filter=tf.reshape(
            gradients,
            integers(*unit_axes, *windows.positions, -1, filters // channels),
        ),
        strides=[1, step, step, 1],
        padding="VALID",
    )
    by_tap = tf.reshape(all_taps, integers(windows.taps, -1, filters))
    return tf.transpose(by_tap, integers(1, 0, 2))


def _depthwise_by_tap(big, small, windows):
    """Yield the gradients of each tap for groups of one channel.

    They are (n, 1, ..., g), or (n, 1, ..., g, o) for several outputs: no
    matmul is called for each channel.
    """
    channels, filters = big.shape[-1], small.shape[-1]
    shape = [-1, *windows.positions, channels]
    if filters != channels:
        shape.append(filters // channels)
    small = tf.reshape(small, integers(*shape))
    axes = integers(*range(1, windows.rank + 1))
    for pixels in windows.blocks(windows.pad(big)):
        pixels = pixels if filters == channels else pixels[..., None]
        yield tf.reduce_sum(pixels * small, axes, keepdims=True)


def _product(x, dz):
    """Return Σ_T x ⊗ dz for (..., T, i) and (..., T, o)."""
    if x.shape[-1] == 1 and dz.shape.rank == 4:
        # A matmul for each single channel costs more than the product.
        return tf.reduce_sum(x * dz, -2, keepdims=True)
    return tf.matmul(x, dz, transpose_a=True)


def split(tensor, groups):
    """Return (n, T, g·c) as (n, g, T, c); unchanged for a single group."""
    if groups == 1:
        return tensor
    _, positions, channels = sizes_of(tensor)
    tensor = tf.reshape(tensor, [-1, positions, groups, channels // groups])
    return tf.transpose(tensor, [0, 2, 1, 3])


def merge(gradients, groups):
    """Return (n, g, a, o) as (n, a, g·o); unchanged for a single group."""
    if groups == 1:
        return gradients
    _, _, rows, columns = gradients.shape
    gradients = tf.transpose(gradients, [0, 2, 1, 3])
    return tf.reshape(gradients, [-1, rows, groups * columns])


def unfold(big, windows):
    """Return the windows of the input, (n, T, K·g·i)."""
    # A gather is two to four times as fast as the op for image patches.
    channels = big.shape[-1]
    if windows.are_pixels:
        (pixels,) = windows.slices(big)
        return pixels
    if not windows.is_static:
        return tf.concat(list(windows.slices(windows.pad(big))), -1)
    count = math.prod(windows.padded_sizes)
    pixels = tf.reshape(windows.pad(big), integers(-1, count, channels))
    rows = tf.gather(pixels, windows.indices(), axis=1)
    shape = integers(-1, windows.count, windows.taps * channels)
    return tf.reshape(rows, shape)


def unfold_by_identity(big, windows):
    """Return the windows, after an identity convolution along the last axis.

    This is faster while a row of a window has few entries, since the gather
    then takes whole rows.
    """
    channels = big.shape[-1]
    *outer_sizes, last = windows.padded_sizes
    size = windows.kernel[-1] * channels
    kernel = np.eye(size, dtype=big.dtype.as_numpy_dtype)
    rows = tf.nn.conv2d(
        tf.reshape(
            windows.pad(big), [-1, math.prod(outer_sizes), last, channels]
        ),
        kernel.reshape([1, -1, channels, size]),
        [1, 1, windows.strides[-1], 1],
        "VALID",
    )
    windows = windows.of_rows()
    rows = tf.reshape(rows, [-1, math.prod(windows.sizes), size])
    rows = tf.gather(rows, windows.indices(), axis=1)
    return tf.reshape(rows, [-1, windows.count, windows.taps * size])


def patches(big, small, windows, *, groups, extract=unfold):
    """Return the gradients by one matmul, with every window as a row."""
    unfolded = extract(big, windows)
    window_size = unfolded.shape[-1] or 0
    if groups == 1 and small.shape[-1] <= min(SHORT_AXIS, window_size - 1):
        return _product(small, unfolded)
    unfolded = _by_group(unfolded, windows, groups)
    return merge(_product(unfolded, split(small, groups)), groups)


def _by_group(unfolded, windows, groups):
    """Return (n, T, K·g·i) as (n, g, T, K·i)."""
    if groups == 1:
        return unfolded
    channels = unfolded.shape[-1] // windows.taps // groups
    shape = [-1, windows.count, windows.taps, groups, channels]
    unfolded = tf.transpose(tf.reshape(unfolded, shape), [0, 3, 1, 2, 4])
    return tf.reshape(
        unfolded, [-1, groups, windows.count, windows.taps * channels]
    )


def patch_gram_norms(big, small, windows, *, groups):
    """Return ⟨PPᵀ, DDᵀ⟩ of the windows P and the output gradients D."""
    rows = _by_group(unfold(big, windows), windows, groups)
    small = split(small, groups)
    return squares_of_products(_gram(rows) * _gram(small), rows, small)


def pixel_gram_norms(big, small, windows, *, groups):
    """Return ⟨PPᵀ, DDᵀ⟩, with PPᵀ from the Gram matrix of the pixels.

    Windows overlap, so their products are sums of products of pixels, one per
    tap. This needs K times fewer multiplications and copies no window.
    """
    padded = windows.pad(big)
    sizes = list(windows.padded_sizes)
    pixels = tf.reshape(padded, [-1, math.prod(sizes), padded.shape[-1]])
    gram = _gram(split(pixels, groups))
    for dimension, (k, d) in enumerate(zip(windows.kernel, windows.dilation)):
        # The axes of one dimension, in rows and in columns, side by side.
        outer = sizes[:dimension]
        inner = sizes[dimension + 1 :]
        size = sizes[dimension]
        shape = [
            -1,
            math.prod(outer),
            size,
            math.prod(inner) * math.prod(outer),
            size,
            math.prod(inner),
        ]
        gram = tf.reshape(gram, shape)
        # At one tap all windows read a slice of the pixels: their products are
        # this slice of the Gram matrix, in its rows and in its columns.
        tap_slices = [windows.tap_slice(dimension, a * d) for a in range(k)]
        gram = tf.add_n(
            [gram[:, :, tap_slice, :, tap_slice] for tap_slice in tap_slices]
        )
        sizes[dimension] = windows.positions[dimension]
    count, small = windows.count, split(small, groups)
    by_group = [groups] if groups > 1 else []
    gram = tf.reshape(gram, [-1, *by_group, count, count])
    return squares_of_products(gram * _gram(small), padded, small)


def _gram(rows):
    return tf.matmul(rows, rows, transpose_b=True)


def loop(big, small, windows, *, groups):
    """Return the convolution's own filter gradient, sample by sample."""
    small = tf.reshape(small, [-1, *windows.positions, small.shape[-1]])

    def sample_gradient(pair):
        return filter_gradient(
            pair[0][None], pair[1][None], windows, groups=groups
        )

    i, o = big.shape[-1] // groups, small.shape[-1]
    return tf.map_fn(
        sample_gradient,
        (big, small),
        fn_output_signature=tf.TensorSpec([windows.taps * i, o], big.dtype),
        parallel_iterations=8,
    )


def total(big, small, windows, *, groups):
    """Return the gradient of the whole batch, (K·i, g·o)."""
    if groups == 1 and windows.are_pixels:
        big, small = (
            tf.reshape(t, integers(-1, t.shape[-1])) for t in (big, small)
        )
        return tf.matmul(big, small, transpose_a=True)
    if has_filter_gradient(windows, groups, big.shape[-1]):
        small = tf.reshape(small, [-1, *windows.positions, small.shape[-1]])
        return filter_gradient(big, small, windows, groups=groups)
    o = small.shape[-1] // groups
    small = tf.reshape(split(small, groups), [-1, groups, windows.count, o])
    rows = []
    for pixels in windows.slices(windows.pad(big)):
        i = pixels.shape[-1] // groups
        pixels = tf.reshape(
            split(pixels, groups), [-1, groups, windows.count, i]
        )
        rows.append(tf.einsum("ngti,ngto->igo", pixels, small))
    return tf.reshape(tf.concat(rows, 0), [-1, groups * o])


def dots(big, small, windows, *, groups, direction):
    """Return ⟨gradient, direction⟩, (n,), for a direction (K·i, g·o)."""
    if has_filter_gradient(windows, groups, big.shape[-1]):
        outputs = convolve(big, direction, windows, groups=groups)
        return tf.reduce_sum(outputs * small, [1, 2])
    small, total = split(small, groups), 0.0
    kernels = tf.split(direction, windows.taps)
    for pixels, kernel in zip(windows.slices(windows.pad(big)), kernels):
        pixels, kernel = split(pixels, groups), split(kernel[None], groups)
        # A matmul for each single channel costs more than the product.
        is_single = pixels.shape[-1] == 1
        total += (
            pixels * kernel if is_single else tf.matmul(pixels, kernel)
        ) * small
    return tf.reduce_sum(total, list(range(1, small.shape.rank)))


def is_depthwise(groups, channels):
    """Whether each of several groups has one channel of the input."""
    return 1 < groups == channels


def is_one_op(windows, xla=False):
    """Whether one op of TensorFlow gives all taps of a depthwise kernel.

    XLA's code for it is slow.
    """
    is_uniform = len(set(windows.dilation)) == 1 == max(windows.strides)
    return not xla and is_uniform and windows.rank < 3


def has_filter_gradient(windows, groups, channels):
    """Whether one op of TensorFlow gives the filter gradient on a CPU."""
    windows = windows.without_whole()
    if windows.is_dilated:
        return False
    if groups == 1:
        return windows.rank <= 3
    # TensorFlow's depthwise op wants the same stride everywhere.
    is_uniform = len(set(windows.strides)) == 1
    return is_depthwise(groups, channels) and windows.rank < 3 and is_uniform


def filter_gradient(big, small, windows, *, groups):
    """Return the filter gradient by TensorFlow's op, (K·i, g·o)."""
    o = small.shape[-1]
    big, positions, shape, options = _op_arguments(
        big, o, windows, groups=groups
    )
    small = tf.reshape(small, [-1, *positions, o])
    if groups > 1:
        op = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter
    elif len(positions) == 2:
        op = tf.raw_ops.Conv2DBackpropFilter
    else:
        op = tf.raw_ops.Conv3DBackpropFilterV2
    gradient = op(input=big, filter_sizes=shape, out_backprop=small, **options)
    return tf.reshape(gradient, [-1, o])


def convolve(big, kernel, windows, *, groups):
    """Return the convolution with (K·i, g·o), (n, T, g·o)."""
    o = kernel.shape[-1]
    big, _, shape, options = _op_arguments(big, o, windows, groups=groups)
    op = tf.nn.conv2d if len(shape) == 4 else tf.nn.conv3d
    if groups > 1:
        op = tf.nn.depthwise_conv2d
    outputs = op(big, tf.reshape(kernel, shape), **options)
    return tf.reshape(outputs, [-1, windows.count, o])


def _op_arguments(big, outputs, windows, *, groups):
    """Return an op's input, positions, kernel shape and options."""
    channels, padding = big.shape[-1], "SAME"
    if not windows.has_same_padding:
        big, padding = windows.pad(big), "VALID"
    windows = windows.without_whole()
    kernel, strides, sizes, positions = (
        list(t) if windows.rank > 1 else [1, *t]
        for t in (
            windows.kernel,
            windows.strides,
            windows.sizes if padding == "SAME" else windows.padded_sizes,
            windows.positions,
        )
    )
    if windows.rank == 1:
        # The depthwise op wants the same stride everywhere.
        strides[0] = strides[1]
    big = tf.reshape(big, [-1, *sizes, channels])
    shape = [*kernel, channels, outputs]
    if groups > 1:
        shape = [*kernel, groups, outputs // groups]
    options = {"strides": [1, *strides, 1], "padding": padding}
    return big, positions, shape, options
