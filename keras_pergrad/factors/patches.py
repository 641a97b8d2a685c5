"""The factor of convolution kernels."""

import contextlib
import contextvars
import math

import tensorflow as tf

from keras_pergrad.factors import convolution_costs, convolution_methods
from keras_pergrad.factors.base import (
    SampleGradients,
    expand,
    in_shape,
    in_type,
    inner_products,
    integers,
    squares,
    squares_by_sample,
    weighted_total,
)
from keras_pergrad.factors.outer import squares_by_chunks
from keras_pergrad.factors.rates import rates
from keras_pergrad.keras_internals.tensorflow.settings import in_xla

# Each method gives all gradients, (n, K·i, g·o) ...
_GRADIENTS = {
    "taps": convolution_methods.taps,
    "patches": convolution_methods.patches,
    "identity": convolution_methods.patches_by_identity,
    "loop": convolution_methods.loop,
}
# ... and each of these the squared norms without them.
_NORMS = {
    "tap_norms": convolution_methods.tap_norms,
    "patch_gram": convolution_methods.patch_gram_norms,
    "pixel_gram": convolution_methods.pixel_gram_norms,
}
METHODS = (*_GRADIENTS, *_NORMS)

_forced_method = contextvars.ContextVar(
    "forced convolution method", default=None
)


@contextlib.contextmanager
def convolution_method(method):
    """Force the method of every convolution that is traced inside.

    A layer that the method cannot serve keeps its own: on a CPU, dilated or
    grouped convolutions have no looped filter gradient.

    Args:
        method: one of `METHODS`.

    Raises:
        ValueError: there is no such method.

    Example:

    >>> from keras_pergrad.factors import convolution_method
    >>> with convolution_method("taps"):
    ...     pass
    """
    _check_method(method)
    token = _forced_method.set(method)
    try:
        yield
    finally:
        _forced_method.reset(token)


class Patches(SampleGradients):
    """Contributions Σ_p big[p·stride + a·dilation] ⊗ small[p] of each tap a.

    For a convolution `big` is the input and `small` the output's gradient;
    for a transposed one they change places.

    Args:
        big: (n, *sizes, groups·i), channels last.
        small: (n, *positions, groups·o), channels last.
        windows: the `Windows` of the layer on `big`.
        shape: the kernel's shape, of taps·i·groups·o elements in this order.
        groups: the number of channel groups.
        method: one of `METHODS`, to force how norms are computed; default: by
            cost.

    Raises:
        ValueError: there is no such method, or it cannot serve these windows.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> windows = factors.Windows.of((8,), (3,), (1,), (1,), "valid")
    >>> kernel = factors.Patches(
    ...     tf.ones((2, 8, 1)), tf.ones((2, 6, 4)), windows, (3, 1, 4)
    ... )
    >>> kernel.squared_norms().numpy()  # 12 entries of 6
    array([432., 432.], dtype=float32)
    """

    rows = ("big", "small", "_gradients", "_unfolded")

    def __init__(self, big, small, windows, shape, groups=1, method=None):
        self.big = big
        sizes = integers(-1, windows.count, small.shape[-1])
        self.small = tf.reshape(small, sizes)
        self.windows = windows
        self.shape = list(shape)
        self.groups = groups
        self._gradients = None
        self._unfolded = None
        self._costs = convolution_costs.costs(
            windows,
            groups,
            big.shape[-1],
            small.shape[-1],
            rates().convolutions,
            in_xla(),
        )
        if method is not None:
            _check_method(method)
            if method not in self._costs:
                raise ValueError(
                    f"method {method!r} cannot serve a kernel of shape "
                    f"{tuple(shape)} with {groups} groups and dilation "
                    f"{windows.dilation}; {tuple(self._costs)} can."
                )
        elif _forced_method.get() in self._costs:
            method = _forced_method.get()
        self.method = method

    def chosen_method(self):
        """How the norms are computed: one of `METHODS`."""
        return self.method or min(self._costs, key=self._rank)

    def sum_method(self):
        is_held = self.chosen_method() in _GRADIENTS
        return "held" if is_held else "filter gradient"

    def norm_bytes(self, n):
        if not self.windows.is_static:
            return None
        return (
            convolution_costs.norm_bytes(
                self.chosen_method(),
                self.windows,
                self.groups,
                self.big.shape[-1],
                self.small.shape[-1],
            )
            * n
            * self.big.dtype.size
        )

    def squared_norms(self):
        method = self.chosen_method()
        if self._gradients is None and method in _NORMS:
            big, *others = self._method_arguments()
            if method == "patch_gram":
                big = convolution_methods.unfold(big, self.windows)
                if self.groups == 1 and not self.windows.are_pixels:
                    self._unfolded = big
            return _NORMS[method](big, *others)
        return squares_by_sample(self._matrices())

    def weighted_sum(self, weights):
        if self._gradients is not None:
            return self._restore_shape(weighted_total(self._gradients, weights))
        big, small, windows, groups = self._method_arguments()
        if weights is not None:
            small *= expand(weights, small)
        if self._unfolded is not None:
            total = convolution_methods.total_of_windows(self._unfolded, small)
        else:
            total = convolution_methods.total(big, small, windows, groups)
        return in_shape(total, self.shape)

    def dot(self, direction):
        matrix = in_type(direction, self.big.dtype)
        matrix = tf.reshape(matrix, [-1, self.small.shape[-1]])
        if self._gradients is not None:
            if self._is_transposed(self._gradients):
                matrix = tf.transpose(matrix)
            return inner_products(self._gradients, matrix)
        if self._unfolded is not None:
            products = tf.matmul(self._unfolded, matrix) * self.small
            return tf.reduce_sum(products, [1, 2])
        return convolution_methods.dots(*self._method_arguments(), matrix)

    def sum_of_squares(self):
        if self._gradients is not None:
            return self._restore_shape(squares(self._gradients))
        method = _GRADIENTS[self._gradient_method()]

        def gradients(big, small):
            matrices = method(big, small, self.windows, self.groups)
            return self._restore_shape(matrices, [-1])

        sides = self.big, self.small
        return squares_by_chunks(gradients, sides, self.shape)

    def squared_norm_of_sum(self):
        if self._gradients is None:
            return super().squared_norm_of_sum()
        return tf.reduce_sum(tf.square(tf.reduce_sum(self._gradients, 0)))

    def materialize(self):
        return self._restore_shape(self._matrices(), [-1])

    def _restore_shape(self, gradients, batch=()):
        """Reshape gradients (K·i, g·o), or transposed ones (o, K·i)."""
        if self._is_transposed(gradients):
            gradients = tf.linalg.matrix_transpose(gradients)
        return in_shape(gradients, [*batch, *self.shape])

    def _is_transposed(self, gradients):
        return gradients.shape[-1] != self.small.shape[-1]

    def _gradient_method(self):
        method = self.chosen_method()
        if method in _GRADIENTS:
            return method
        return min(_GRADIENTS, key=self._rank)

    def _matrices(self):
        if self._gradients is None:
            method = _GRADIENTS[self._gradient_method()]
            self._gradients = method(*self._method_arguments())
        return self._gradients

    def _rank(self, method):
        """Return what orders methods: those that hold too much come last."""
        sizes = self.groups, self.big.shape[-1], self.small.shape[-1]
        holds_too_much = convolution_costs.holds_too_much(
            method, self.windows, *sizes
        )
        return holds_too_much, self._costs.get(method, math.inf)

    def _method_arguments(self):
        return self.big, self.small, self.windows, self.groups


def _check_method(method):
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {METHODS}. Received: method={method!r}"
        )
