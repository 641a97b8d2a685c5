"""The two sides of factors: their curvature, and rotations of gradients.

The gradient of a kernel is a sum of outer products Σ_t a_t ⊗ b_t, of inputs
and gradients at the outputs.
"""

import functools
import math
from typing import Any, NamedTuple

import tensorflow as tf

from keras_pergrad.factors import (
    Full,
    Outer,
    Patches,
    Rows,
    SampleGradients,
    Widened,
    convolution_methods,
    wide,
)
from keras_pergrad.factors.chunks import sum_by_chunks
from keras_pergrad.factors.written_out import flat_samples, in_shape
from keras_pergrad.uses.weight_factors import Reshaped
from keras_pergrad.uses.weight_paths import Scaled

#: A variable of at most so many entries has all of Σ g gᵀ.
FULL = 2**10


class Kronecker(NamedTuple):
    """Σ g gᵀ of contributions g is about inputs ⊗ outputs / count.

    What several batches give adds up, part by part. Of mean gradients' samples
    it is n² times as much, since contributions are 1/n of them.

    Attributes:
        inputs: (i, i), or (i,) if it is diagonal: of a table, how often each
            row was looked up.
        outputs: (o, o), or (o,) if it is diagonal.
        count: a scalar: the positions of all samples. Of several in a sample
            those do not count, nor their inputs, whose outputs no loss
            reaches: padding.
        axes: which axes of the variable make up the i inputs, in this order;
            the others, in theirs, are the o outputs. What has no two sides
            has no axes here: `inputs` is [[1]] and `count` 1 for each batch,
            and `outputs` is the exact Σ g gᵀ of all entries of the variable,
            as they lie in memory, or its diagonal.
    """

    inputs: Any
    outputs: Any
    count: Any
    axes: tuple[int, ...]


@functools.singledispatch
def axes(factor: SampleGradients) -> tuple[int, ...]:
    """Return the variable's axes on the left of `kronecker`."""
    return ()


@functools.singledispatch
def kronecker(factor: SampleGradients) -> Kronecker:
    """Return a Kronecker product that stands for Σ g gᵀ: a `Kronecker`.

    For outer products Σ_t a_t ⊗ b_t of one use they are the sums of a aᵀ and
    b bᵀ over samples and positions (K-FAC; "expand" in Eschenhagen et al.,
    arXiv 2311.00636). Others answer the exact Σ g gᵀ of a variable of at most
    1,024 entries, else its exact diagonal. All samples count: ask before any
    is blanked.
    """
    return _entries(factor)


@functools.singledispatch
def rotated(
    factor: SampleGradients,
    inputs: tf.Tensor | None = None,
    outputs: tf.Tensor | None = None,
) -> SampleGradients:
    """Return the factor of Uᵀ G V, for gradients G seen as matrices.

    With the eigenvectors of `kronecker`, its `sum_of_squares` are the corrected
    eigenvalues of EK-FAC (George et al., arXiv 1806.03884). Ask before any
    sample is blanked.

    Args:
        factor: `SampleGradients`.
        inputs, outputs: U, (i, any), and V, (o, any), for what `kronecker` has
            on the left and on the right; None: it stays as it is.
    """
    return _rotated_gradients(factor, inputs, outputs)


def _entries(factor) -> Kronecker:
    """Return the exact Σ g gᵀ of all entries, or its diagonal."""
    outputs = tf.reshape(tf.convert_to_tensor(factor.sum_of_squares()), [-1])
    size = outputs.shape.num_elements()
    if size is not None and size <= FULL:
        rows = flat_samples(factor.materialize())
        outputs = tf.matmul(rows, rows, transpose_a=True)
    identity = tf.ones([1, 1], outputs.dtype)
    return Kronecker(identity, outputs, identity[0, 0], axes=())


def _rotated_gradients(factor, inputs, outputs) -> SampleGradients:
    matrices = as_matrices(wide(factor.materialize()), axes(factor))
    if outputs is not None:
        matrices = tf.einsum("nio,ok->nik", matrices, outputs)
    if inputs is not None:
        matrices = tf.einsum("nio,ik->nko", matrices, inputs)
    return Full(matrices)


def as_matrices(gradients: tf.Tensor, axes: tuple[int, ...]) -> tf.Tensor:
    """Return gradients of a variable as (n, these axes, the others)."""
    sizes: Any = gradients.shape[1:].as_list()
    other_axes = [k for k in range(len(sizes)) if k not in axes]
    transposed = tf.transpose(
        gradients, [0, *(k + 1 for k in (*axes, *other_axes))]
    )
    left_size, right_size = (
        math.prod(sizes[k] for k in chosen) for chosen in (axes, other_axes)
    )
    return tf.reshape(transposed, [-1, left_size, right_size])


def axes_of_sides(
    factor: Outer,
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes of the variable on each side, in order.

    None if an axis has parts on both.
    """
    shape, perm = factor.shape, factor.perm
    matrix_shape = list(shape if perm is None else factor.unpermuted or ())
    order = list(range(len(matrix_shape)) if perm is None else perm)
    if [matrix_shape[p] for p in order] != list(shape):
        return None
    for count in range(len(matrix_shape) + 1):
        if math.prod(matrix_shape[:count]) == factor.x.shape[-1]:
            inverse = [order.index(k) for k in range(len(matrix_shape))]
            return tuple(inverse[:count]), tuple(inverse[count:])
    return None


def ordered_sides(factor: Outer) -> list[Any]:
    """Return x and dz with the variable's axes in their order."""
    sides = zip((factor.x, factor.dz), axes_of_sides(factor) or ())
    return [
        reorder_axes(tensor, side_axes, sorted(side_axes), shape=factor.shape)
        for tensor, side_axes in sides
    ]


def reorder_axes(tensor, axes, order, *, shape):
    """Return (n, T, ·) with the axes that its numbers have in another order."""
    if list(axes) == list(order):
        return tensor
    count = tf.shape(tensor)[1]
    sizes = [shape[a] for a in axes]
    split = tf.reshape(tensor, [-1, count, *sizes])
    perm = [list(axes).index(a) + 2 for a in order]
    transposed = tf.transpose(split, [0, 1, *perm])
    transposed = tf.reshape(transposed, [-1, count, math.prod(sizes)])
    transposed.set_shape(tensor.shape)
    return transposed


@axes.register
def _(factor: Outer):
    sides = axes_of_sides(factor)
    return () if sides is None else tuple(sorted(sides[0]))


@kronecker.register
def _(factor: Outer):
    if axes_of_sides(factor) is None:
        return _entries(factor)
    x, dz = ordered_sides(factor)
    counted, sides = _reached_positions(dz), []
    for tensor in (x * tf.cast(counted, x.dtype)[..., None], dz):
        rows = in_shape(tensor, [-1, tensor.shape[-1]])
        sides.append(tf.matmul(rows, rows, transpose_a=True))
    count = tf.cast(tf.reduce_sum(counted), x.dtype)
    return Kronecker(sides[0], sides[1], count, axes=axes(factor))


@rotated.register
def _(factor: Outer, inputs=None, outputs=None):
    if axes_of_sides(factor) is None:
        return _rotated_gradients(factor, inputs, outputs)
    x, dz = ordered_sides(factor)
    return Outer(_map_last_axis(x, inputs), _map_last_axis(dz, outputs))


def _map_last_axis(tensor, matrix):
    """Return the map of the last axis of (n, T, ·)."""
    if matrix is None:
        return tensor
    matrix = tf.convert_to_tensor(matrix, tensor.dtype)
    return tf.einsum("nti,ik->ntk", tensor, matrix)


def _reached_positions(dz):
    """Return 1 for each position that a loss reaches, else 0, (n, t).

    Others, such as padding, add nothing to a gradient. `dz`: the gradients at
    the outputs, (n, t, o). A single position counts for every sample.
    """
    is_reached = tf.reduce_any(dz != 0, -1) | (tf.shape(dz)[1] == 1)
    return tf.cast(is_reached, dz.dtype)


@axes.register
def _(factor: Rows):
    return (0,)


@kronecker.register
def _(factor: Rows):
    counted = tf.reshape(_reached_positions(factor.dz), [-1])
    counts = tf.math.unsorted_segment_sum(
        counted, tf.reshape(factor.ids, [-1]), factor.shape[0]
    )
    dz = tf.reshape(factor.dz, [-1, factor.shape[-1]])
    outputs = tf.matmul(dz, dz, transpose_a=True)
    return Kronecker(counts, outputs, tf.reduce_sum(counted), axes=(0,))


@rotated.register
def _(factor: Rows, inputs=None, outputs=None):
    if inputs is not None:
        return _rotated_gradients(factor, inputs, outputs)
    dz: Any = _map_last_axis(factor.dz, outputs)
    return Rows(
        factor.ids, dz, [factor.shape[0], dz.shape[-1]], method=factor.method
    )


@axes.register
def _(factor: Patches):
    if factor.groups > 1 or factor.shape[-1] != factor.small.shape[-1]:
        return ()
    return tuple(range(len(factor.shape) - 1))


@kronecker.register
def _(factor: Patches):
    if not axes(factor):
        return _entries(factor)
    counted = reached_windows(factor)
    size = math.prod(factor.shape[:-1])
    small = tf.reshape(factor.small, [-1, factor.shape[-1]])
    return Kronecker(
        sum_of_windows(factor, counted, _products, shape=[size, size]),
        tf.matmul(small, small, transpose_a=True),
        tf.reduce_sum(counted),
        axes=axes(factor),
    )


def _products(unfolded):
    rows = tf.reshape(unfolded, [-1, unfolded.shape[-1]])
    return tf.matmul(rows, rows, transpose_a=True)


def reached_windows(factor: Patches) -> tf.Tensor:
    """Return 1 for each window that a loss reaches, else 0, (n, t)."""
    small = factor.small
    n, channels = tf.shape(small)[0], small.shape[-1]
    positions = tf.reduce_prod(tf.shape(small)[1:-1])
    return _reached_positions(tf.reshape(small, [n, positions, channels]))


def sum_of_windows(factor, counted, function, *, shape):
    """Return the sum of a function of the windows of a few samples at a time.

    Args:
        factor: `Patches` of one group.
        counted: as `reached_windows`; other windows are zeros.
        function: takes (n, t, taps · channels).
        shape: that of the function's value.
    """
    windows = factor.windows

    def of_some(big, counted):
        unfolded = convolution_methods.unfold(big, windows)
        return function(unfolded * tf.cast(counted, unfolded.dtype)[..., None])

    numbers = windows.count if windows.is_static else 2**20
    numbers *= math.prod(factor.shape[:-1])
    return sum_by_chunks(of_some, (factor.big, counted), numbers, shape=shape)


@rotated.register
def _(factor: Patches, inputs=None, outputs=None):
    if not axes(factor):
        return _rotated_gradients(factor, inputs, outputs)
    if inputs is None:
        x = convolution_methods.unfold(factor.big, factor.windows)
    else:
        inputs = tf.convert_to_tensor(inputs, factor.big.dtype)
        x = map_windows(factor, inputs)
    return Outer(x, _map_last_axis(factor.small, outputs))


def map_windows(factor: Patches, matrix: tf.Tensor) -> tf.Tensor:
    """Return each window times (K·i, k), for one group: (n, T, k)."""
    big, windows = factor.big, factor.windows
    if windows.are_pixels:
        return _map_last_axis(convolution_methods.unfold(big, windows), matrix)
    has_op = convolution_methods.has_filter_gradient(windows, 1, big.shape[-1])
    if has_op and windows.is_static:
        return convolution_methods.convolve(big, matrix, windows, groups=1)
    kernels = tf.split(matrix, windows.taps)
    tap_pairs = zip(windows.slices(windows.pad(big)), kernels)
    return tf.add_n(
        [tf.matmul(pixels, kernel[None]) for pixels, kernel in tap_pairs]
    )


@axes.register(Scaled)
@axes.register(Widened)
def _(factor):
    return axes(factor.factor)


@kronecker.register
def _(factor: Widened):
    return kronecker(factor.factor)


@rotated.register
def _(factor: Widened, inputs=None, outputs=None):
    return rotated(factor.factor, inputs, outputs)


@kronecker.register
def _(factor: Scaled):
    product = kronecker(factor.factor)
    outputs = factor.change(factor.change(product.outputs))
    return product._replace(outputs=outputs)


@rotated.register
def _(factor: Scaled, inputs=None, outputs=None):
    return Scaled(rotated(factor.factor, inputs, outputs), factor.number)


def is_same_matrix(factor: Reshaped) -> bool:
    """Whether a reshaped tensor is the same matrix as its source.

    It is one of all axes but the last by the last.
    """
    sizes, source_sizes = factor.tensor.shape.as_list(), factor.shape
    if factor.tensor.dtype not in (tf.float32, tf.float64):
        return False
    if not all(type(k) is int for k in (*sizes, *source_sizes)):
        return False
    return len(sizes) > 1 < len(source_sizes) and sizes[-1] == source_sizes[-1]


@axes.register
def _(factor: Reshaped):
    sizes, left_axes = factor.tensor.shape.as_list(), axes(factor.factor)
    rows = [k for k, size in enumerate(sizes[:-1]) if size != 1]
    long_axes = [k for k in left_axes if sizes[k] != 1]
    if not is_same_matrix(factor) or long_axes != rows or not left_axes:
        return ()
    return tuple(range(len(factor.shape) - 1))


@kronecker.register
def _(factor: Reshaped):
    if not axes(factor):
        return _entries(factor)
    return kronecker(factor.factor)._replace(axes=axes(factor))


@rotated.register
def _(factor: Reshaped, inputs=None, outputs=None):
    if not axes(factor):
        return _rotated_gradients(factor, inputs, outputs)
    return rotated(factor.factor, inputs, outputs)
