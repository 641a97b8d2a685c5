"""Sums of outer products whose sides have axes of the variable each."""

import math

import tensorflow as tf

from keras_pergrad.factors.shared import integers


def axes_of_sides(shape, perm, unpermuted, inputs):
    """Return the axes of the variable on each side, in order, or None.

    Args:
        shape: the variable's shape.
        perm, unpermuted: as `Outer` has them.
        inputs: how many numbers the left side has.

    Returns:
        (axes of the left side, of the right side), or None if an axis has
        parts on both.
    """
    before = list(shape if perm is None else unpermuted or ())
    order = list(range(len(before)) if perm is None else perm)
    if [before[p] for p in order] != list(shape):
        return None
    for count in range(len(before) + 1):
        if math.prod(before[:count]) == inputs:
            back = [order.index(k) for k in range(len(before))]
            return tuple(back[:count]), tuple(back[count:])
    return None


def project(x, dz, axes, projection):
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
    others = [a for a in axes[1] if a not in columns]
    shape = projection.shape
    dz = in_order(dz, axes[1], [*others, *columns_of_dz], shape)
    more = math.prod(shape[a] for a in others)
    if not others:
        x = in_order(x, axes[0], sorted(axes[0]), shape)
        rows = projection.inputs.apply(x)
        return projection.of_sides(rows, projection.outputs.apply(dz))
    # Some axes of the rows are with the columns: as further positions.
    dz = tf.reshape(dz, _positions(dz, more, projection.outputs.length))
    matrix = projection.inputs.matrix(x.dtype)
    row_axes = [a for a in range(len(shape)) if a not in columns]
    matrix = tf.reshape(matrix, [*(shape[a] for a in row_axes), -1])
    order = [row_axes.index(a) for a in (*axes[0], *others)]
    matrix = tf.transpose(matrix, [*order, len(row_axes)])
    size = projection.inputs.size
    matrix = tf.reshape(matrix, integers(x.shape[-1], more * size))
    rows = tf.matmul(tf.reshape(x, integers(-1, x.shape[-1])), matrix)
    shape_of_rows = tf.concat([tf.shape(dz)[:2], [size]], 0)
    rows = tf.reshape(rows, shape_of_rows)
    return projection.of_sides(rows, projection.outputs.apply(dz))


def in_order(tensor, axes, order, shape):
    """Return (n, T, ·) with the axes that its numbers have in another order."""
    if list(axes) == list(order):
        return tensor
    count = tf.shape(tensor)[1]
    sizes = [shape[a] for a in axes]
    apart = tf.reshape(tensor, [-1, count, *sizes])
    places = [list(axes).index(a) + 2 for a in order]
    turned = tf.transpose(apart, [0, 1, *places])
    turned = tf.reshape(turned, [-1, count, math.prod(sizes)])
    turned.set_shape(tensor.shape)
    return turned


def _positions(tensor, more, length):
    """Return the shape with parts of the last axis as positions."""
    count = tensor.shape[1]
    if count is None:
        count = tf.shape(tensor)[1]
    return [-1, count * more, length]
