"""A kernel and the bias that is added to its products, as one matrix.

The bias is the kernel's last row, which meets a one at each position.
"""

import tensorflow as tf

from keras_pergrad.factors import convolution_methods
from keras_pergrad.factors.base import Kronecker
from keras_pergrad.factors.outer import Outer, sum_by_chunks
from keras_pergrad.factors.patches import Patches
from keras_pergrad.factors.simple import Sum, Widened

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


class WithBias:
    """What a curvature needs of a kernel and its bias: one factor of both.

    Args:
        kernel, bias: factors, of which `match_biases` says that they belong.
    """

    def __init__(self, kernel, bias):
        self._kernel, self._bias = _inner(kernel), _inner(bias)

    def axes(self):
        """Return the kernel's axes on the left, without the row of ones."""
        return _left_axes(self._kernel)

    def squared_norms(self):
        """Return the squared norms of kernel and bias together, (n,)."""
        return self._kernel.squared_norms() + self._bias.squared_norms()

    def kronecker(self):
        """Return a `Kronecker` with one more row on the left."""
        if isinstance(self._kernel, Outer):
            product = self._outer().kronecker()
            return product._replace(axes=self.axes())
        product = self._kernel.kronecker()
        sums = self._sums_of_patches()[:, None]
        corner = tf.reshape(product.count, [1, 1])
        inputs = tf.concat(
            [
                tf.concat([product.inputs, sums], 1),
                tf.concat([tf.transpose(sums), corner], 1),
            ],
            0,
        )
        return Kronecker(inputs, product.outputs, product.count, product.axes)

    def rotated(self, inputs, outputs):
        """Return the factor of Uᵀ G V; U has one more row."""
        if isinstance(self._kernel, Outer):
            return self._outer().rotated(inputs, outputs)
        kernel_factor = self._kernel.rotated(inputs[:-1], outputs)
        return Outer(
            kernel_factor.x + tf.cast(inputs[-1], kernel_factor.x.dtype),
            kernel_factor.dz,
        )

    def _outer(self):
        x, dz = self._kernel.sides()
        return Outer(tf.concat([x, tf.ones_like(x[..., :1])], -1), dz)

    def _sums_of_patches(self):
        windows = self._kernel.windows
        numbers = windows.count if windows.is_static else 2**20

        def sum_windows(big, counted):
            unfolded = convolution_methods.unfold(big, windows)
            counted = tf.cast(counted, unfolded.dtype)[..., None]
            return tf.reduce_sum(unfolded * counted, [0, 1])

        size = self._kernel.big.shape[-1] * windows.taps
        return sum_by_chunks(
            sum_windows,
            (self._kernel.big, self._kernel.counted_windows()),
            numbers * size,
            [size],
        )


def _left_axes(kernel):
    """Return the axes on the left; of a kernel with one input, that one."""
    axes = kernel.axes()
    if not axes and type(kernel) is Outer and kernel.sides_are_axes():
        axes = tuple(k for k, size in enumerate(kernel.shape) if size == 1)[:1]
    return axes


def _inner(factor):
    return factor.factor if isinstance(factor, Widened) else factor


def _origin(tensor):
    while tensor.op.type in _SAME_VALUES:
        tensor = tensor.op.inputs[0]
    return tensor
