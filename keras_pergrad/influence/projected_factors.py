"""Random projections of the gradients of factors, without the gradients."""

import functools
import math

import tensorflow as tf

from keras_pergrad.factors import (
    Blocks,
    Columns,
    Joined,
    Outer,
    Patches,
    Rows,
    SampleGradients,
    Widened,
    wide,
)
from keras_pergrad.factors.outer import HELD
from keras_pergrad.factors.rates import CPU
from keras_pergrad.factors.written_out import integers
from keras_pergrad.influence.projection import BLOCK, Projection
from keras_pergrad.influence.sides import (
    axes_of_sides,
    is_same_matrix,
    map_windows,
    reorder_axes,
)
from keras_pergrad.uses.one_by_one import OneByOne
from keras_pergrad.uses.weight_factors import Reshaped
from keras_pergrad.uses.weight_paths import Scaled

#: Fewer multiplications for a sample are not worth some more ops.
WORTH = 2**18


@functools.singledispatch
def project(factor: SampleGradients, projection: Projection) -> tf.Tensor:
    """Return a random projection of each contribution, (n, size).

    Inner products of projections are those of contributions in the mean. All
    factors of a variable give the same linear map, exactly. Outer products
    need no gradient: each side is projected (LoGra, Choe et al., arXiv
    2405.13954). Gradients that are written out (`held`) are projected
    themselves.
    """
    return _of_gradients(factor, projection)


@functools.singledispatch
def dot_is_less(factor: SampleGradients, projection: Projection) -> bool:
    """Whether `dot` costs no more than `project`, or hardly more."""
    return True


def _of_gradients(factor, projection):
    return projection.of_gradients(factor.materialize())


def _cost_of_sides(t, i, o, *, projection, block=1):
    """Return what it costs to project both sides, (t, i) and (t, o).

    The first side is multiplied by so many columns at once.
    """
    k, m = projection.inputs.size, projection.outputs.size
    sides = t * (i * -(-k // block) * block + o * m + CPU.products.gram * k * m)
    return sides + CPU.products.hold_gram * (t * (k + m) + k * m)


def _sides_cost_less(t, i, o, *, projection, block=1):
    """Whether to project both sides costs less than the gradients do."""
    entries = projection.inputs.length * projection.outputs.length
    if entries > HELD or t is None:
        return True
    k, m = projection.inputs.size, projection.outputs.size
    full = t * i * o + CPU.products.gram * i * m * (o + k)
    full += CPU.products.hold_gram * i * (o + m)
    return _cost_of_sides(t, i, o, projection=projection, block=block) < full


def _dot_costs_less(t, i, o, *, projection, block=1):
    """Whether `dot` costs about as little as to project both sides."""
    if t is None:
        return False
    dot = t * i * o + CPU.products.hold_gram * t * min(i, o)
    return (
        dot
        < _cost_of_sides(t, i, o, projection=projection, block=block) + WORTH
    )


@project.register
def _(factor: Outer, projection):
    i, o = sizes = factor.x.shape[-1], factor.dz.shape[-1]
    axes = axes_of_sides(factor)
    lengths = projection.inputs.length, projection.outputs.length
    if factor.perm is None and sizes == lengths:
        if not _sides_cost_less(factor.positions, i, o, projection=projection):
            return _of_gradients(factor, projection)
    elif axes is None or not projection.inputs.is_matrix:
        return _of_gradients(factor, projection)
    return _of_sides(factor.x, factor.dz, axes, projection=projection)


@dot_is_less.register
def _(factor: Outer, projection):
    i, o = factor.x.shape[-1], factor.dz.shape[-1]
    return _dot_costs_less(factor.positions, i, o, projection=projection)


def _of_sides(x, dz, axes, *, projection):
    """Return the projections of Σ_t x_t ⊗ dz_t, (n, size).

    Args:
        x, dz: (n, T, ·).
        axes: the axes of the variable that each of the two has.
        projection: a `Projection`; its left side has one matrix, unless x has
            just its axes.
    """
    last = len(projection.shape) - 1
    if last in axes[0] and last > 0:
        x, dz, axes = dz, x, axes[::-1]
    columns = (last,) if last > 0 else ()
    columns_of_dz = [a for a in axes[1] if a in columns]
    other_axes = [a for a in axes[1] if a not in columns]
    shape = projection.shape
    dz = reorder_axes(dz, axes[1], [*other_axes, *columns_of_dz], shape=shape)
    extra_positions = math.prod(shape[a] for a in other_axes)
    if not other_axes:
        x = reorder_axes(x, axes[0], sorted(axes[0]), shape=shape)
        rows = projection.inputs.apply(x)
        return projection.of_sides(rows, projection.outputs.apply(dz))
    # dz has row axes of the projection, too. They become further positions,
    # and x is multiplied by the projection's matrix at each of them.
    dz = tf.reshape(
        dz, _with_positions(dz, extra_positions, projection.outputs.length)
    )
    matrix = projection.inputs.matrix(x.dtype)
    row_axes = [a for a in range(len(shape)) if a not in columns]
    matrix = tf.reshape(matrix, [*(shape[a] for a in row_axes), -1])
    order = [row_axes.index(a) for a in (*axes[0], *other_axes)]
    matrix = tf.transpose(matrix, [*order, len(row_axes)])
    size = projection.inputs.size
    matrix = tf.reshape(matrix, integers(x.shape[-1], extra_positions * size))
    rows = tf.matmul(tf.reshape(x, integers(-1, x.shape[-1])), matrix)
    shape_of_rows = tf.concat([tf.shape(dz)[:2], [size]], 0)
    rows = tf.reshape(rows, shape_of_rows)
    return projection.of_sides(rows, projection.outputs.apply(dz))


def _with_positions(tensor, extra_positions, length):
    """Return the shape with parts of the last axis as positions."""
    count = tensor.shape[1]
    if count is None:
        count = tf.shape(tensor)[1]
    return [-1, count * extra_positions, length]


@project.register
def _(factor: Blocks, projection):
    _, blocks, t, i = factor.x.shape
    o = factor.dz.shape[-1]
    rows, columns = projection.inputs, projection.outputs
    if factor.perm is not None or not rows.is_matrix or blocks is None:
        return _of_gradients(factor, projection)
    if (rows.length, columns.length) != (blocks * i, o):
        return _of_gradients(factor, projection)
    if not _sides_cost_less(t, i, o, projection=projection):
        return _of_gradients(factor, projection)
    matrix = tf.reshape(rows.matrix(factor.x.dtype), [blocks, i, -1])
    sides = (
        tf.einsum("nbti,bik->nbtk", factor.x, matrix),
        columns.apply(factor.dz),
    )
    positions = blocks * (tf.shape(factor.x)[2] if t is None else t)
    return projection.of_sides(
        *(tf.reshape(s, [-1, positions, s.shape[-1]]) for s in sides)
    )


@project.register
def _(factor: Rows, projection):
    *middle_sizes, last = factor.whole[1:] or [1]
    row_size = math.prod(middle_sizes)
    ids, dz = factor.ids, factor.dz
    if row_size > 1:
        n, positions = tf.unstack(tf.shape(ids))
        ids = tf.expand_dims(ids, -1) * row_size + tf.range(
            row_size, dtype=ids.dtype
        )
        ids = tf.reshape(ids, [n, positions * row_size])
        dz = tf.reshape(dz, [n, positions * row_size, last])
    columns = projection.outputs.apply(dz)
    sums = projection.inputs.sum_rows(ids, columns)
    return tf.reshape(sums, [-1, projection.size])


@project.register
def _(factor: Patches, projection):
    rows, sizes = projection.inputs, _sizes_of_windows(factor)
    is_served = factor.groups == 1 and rows.is_matrix
    if not is_served or not _sides_cost_less(
        *sizes, projection=projection, block=_block(factor)
    ):
        return _of_gradients(factor, projection)
    windows = map_windows(factor, rows.matrix(factor.big.dtype))
    return projection.of_sides(windows, projection.outputs.apply(factor.small))


@dot_is_less.register
def _(factor: Patches, projection):
    sizes = _sizes_of_windows(factor)
    return factor.groups > 1 or _dot_costs_less(
        *sizes, projection=projection, block=_block(factor)
    )


def _sizes_of_windows(factor):
    """Return the windows of a sample (or None), inputs and outputs."""
    count = factor.windows.count if factor.windows.is_static else None
    *inputs, outputs = factor.shape
    return count, math.prod(inputs), outputs


def _block(factor):
    return 1 if factor.windows.are_pixels else BLOCK


@project.register
def _(factor: Joined, projection):
    parts = [project(part, projection) for part in factor.parts]
    return tf.add_n([wide(part) for part in parts])


@project.register
def _(factor: Columns, projection):
    parts, start = [], 0
    for part, width in zip(factor.parts, factor.widths()):
        parts.append(project(part, projection.of_last(start, width)))
        start += width
    return tf.add_n(parts)


@dot_is_less.register(Columns)
@dot_is_less.register(Joined)
def _(factor, projection):
    return all(dot_is_less(part, projection) for part in factor.parts)


@project.register
def _(factor: Widened, projection):
    return project(factor.factor, projection)


@project.register
def _(factor: Scaled, projection):
    return factor.change(project(factor.factor, projection))


@dot_is_less.register(Scaled)
@dot_is_less.register(Widened)
def _(factor, projection):
    return dot_is_less(factor.factor, projection)


@project.register
def _(factor: Reshaped, projection):
    if not is_same_matrix(factor):
        return _of_gradients(factor, projection)
    shape = factor.tensor.shape.as_list()
    return project(factor.factor, projection.in_shape(shape))


@dot_is_less.register
def _(factor: Reshaped, projection):
    if not is_same_matrix(factor):
        return True
    shape = factor.tensor.shape.as_list()
    return dot_is_less(factor.factor, projection.in_shape(shape))


@project.register
def _(factor: OneByOne, projection):
    def of_sample(gradient):
        return projection.of_gradients(gradient[None])[0]

    return factor.map_samples(of_sample, [projection.size])
