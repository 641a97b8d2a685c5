"""A kernel and the bias that is added to its products, as one matrix.

The bias is the kernel's last row, which meets a one at each position.
"""

import tensorflow as tf

from keras_pergrad.factors import Outer, Patches, Sum, Widened
from keras_pergrad.influence import sides

# "Squeeze": of the one unit of a kernel.
_SAME_VALUES = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze"}


def match_biases(factors):
    """Return the place of each factor's bias among factors, or None.

    It must be the sum of the very tensor that the kernel's products have. A
    bias belongs to one kernel, the first whose products it is added to: two
    blocks of one variable would be no matrix of the weights.
    """
    bias_indices, taken_indices = [], set()
    for factor in factors:
        candidates = _bias_candidates(factor, factors)
        bias_indices.append(
            next((k for k in candidates if k not in taken_indices), None)
        )
        taken_indices.add(bias_indices[-1])
    return bias_indices


def _bias_candidates(kernel, factors):
    kernel = _inner(kernel)
    if type(kernel) not in (Outer, Patches) or not _left_axes(kernel):
        return
    output_gradients = kernel.dz if isinstance(kernel, Outer) else kernel.small
    for index, factor in enumerate(factors):
        bias = _inner(factor)
        if (
            type(bias) is Sum
            and bias.shape == [output_gradients.shape[-1]]
            and _origin(bias.dz) is _origin(output_gradients)
        ):
            yield index


def kronecker(kernel):
    """Return the `Kronecker` of a kernel that has a bias.

    Its left side has one more row. `axes` are the kernel's, without this row.
    """
    kernel = _inner(kernel)
    if isinstance(kernel, Outer):
        product = sides.kronecker(_with_ones(kernel))
        return product._replace(axes=_left_axes(kernel))
    product = sides.kronecker(kernel)
    counted, size = sides.reached_windows(kernel), product.inputs.shape[0]
    sums = sides.sum_of_windows(kernel, counted, _sum_of_rows, shape=[size])[
        :, None
    ]
    corner = tf.reshape(product.count, [1, 1])
    inputs = tf.concat(
        [
            tf.concat([product.inputs, sums], 1),
            tf.concat([tf.transpose(sums), corner], 1),
        ],
        0,
    )
    return product._replace(inputs=inputs)


def rotated(kernel, inputs, outputs):
    """Return the factor of Uᵀ G V of a kernel and its bias, U's last row."""
    kernel = _inner(kernel)
    if isinstance(kernel, Outer):
        return sides.rotated(_with_ones(kernel), inputs, outputs)
    factor = sides.rotated(kernel, inputs[:-1], outputs)
    return Outer(factor.x + tf.cast(inputs[-1], factor.x.dtype), factor.dz)


def _with_ones(kernel):
    x, dz = sides.ordered_sides(kernel)
    return Outer(tf.concat([x, tf.ones_like(x[..., :1])], -1), dz)


def _sum_of_rows(unfolded):
    return tf.reduce_sum(unfolded, [0, 1])


def _left_axes(kernel):
    """Return the axes on the left; of a kernel with one input, that one."""
    axes = sides.axes(kernel)
    if axes or type(kernel) is not Outer:
        return axes
    if sides.axes_of_sides(kernel) is not None:
        axes = tuple(k for k, size in enumerate(kernel.shape) if size == 1)[:1]
    return axes


def _inner(factor):
    return factor.factor if isinstance(factor, Widened) else factor


def _origin(tensor):
    while tensor.op.type in _SAME_VALUES:
        tensor = tensor.op.inputs[0]
    return tensor
