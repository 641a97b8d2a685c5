"""The factor of convolution kernels."""

import contextlib
import contextvars
import functools
import math

import tensorflow as tf

from keras_pergrad.factors import convolution_costs, convolution_methods
from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.chunks import squares_by_chunks
from keras_pergrad.factors.full import Held
from keras_pergrad.factors.outer import HELD, Outer
from keras_pergrad.factors.rates import rates
from keras_pergrad.factors.written_out import (
    expand,
    in_shape,
    in_type,
    integers,
)
from keras_pergrad.keras_internals.tensorflow.settings import in_xla

# Each method gives all gradients, (n, K·i, g·o) ...
_GRADIENTS = {
    "taps": convolution_methods.taps,
    "patches": convolution_methods.patches,
    "identity": functools.partial(
        convolution_methods.patches,
        extract=convolution_methods.unfold_by_identity,
    ),
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

    sampled = ("big", "small")

    def __init__(self, big, small, windows, *, shape, groups=1, method=None):
        self.big = big
        sizes = integers(-1, windows.count, small.shape[-1])
        self.small = tf.reshape(small, sizes)
        self.windows = windows
        self.shape = list(shape)
        self.groups = groups
        self._costs = convolution_costs.costs(
            windows,
            groups,
            big.shape[-1],
            small=small.shape[-1],
            rates=rates().convolutions,
            xla=in_xla(),
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
                big=self.big.shape[-1],
                small=self.small.shape[-1],
            )
            * n
            * self.big.dtype.size
        )

    def squared_norms(self):
        method = self.chosen_method()
        if method in _NORMS:
            return _NORMS[method](
                self.big, self.small, self.windows, groups=self.groups
            )
        return self._written(self.big, self.small).squared_norms()

    def held(self, pairs=False):
        """Return it with gradients or windows written out for the answers."""
        method = self.chosen_method()
        if pairs or method in _GRADIENTS:
            return self._written(self.big, self.small)
        if method == "patch_gram" and self.groups == 1:
            unfolded = convolution_methods.unfold(self.big, self.windows)
            return Outer(unfolded, self.small, self.shape, method="gram")
        return self

    def weighted_sum(self, weights):
        small = self.small
        if weights is not None:
            small *= expand(weights, small)
        total = convolution_methods.total(
            self.big, small, windows=self.windows, groups=self.groups
        )
        return in_shape(total, self.shape)

    def dot(self, direction):
        matrix = in_type(direction, self.big.dtype)
        matrix = tf.reshape(matrix, [-1, self.small.shape[-1]])
        return convolution_methods.dots(
            self.big,
            self.small,
            windows=self.windows,
            groups=self.groups,
            direction=matrix,
        )

    def sum_of_squares(self):
        return squares_by_chunks(
            lambda *sides: self._written(*sides).materialize(),
            (self.big, self.small),
            self.shape,
        )

    def materialize(self):
        return self._written(self.big, self.small).materialize()

    def _written(self, big, small):
        """Return the factor of written-out gradients, of some samples."""
        method = self.chosen_method()
        if method not in _GRADIENTS:
            method = min(_GRADIENTS, key=self._rank)
        gradients = _GRADIENTS[method](
            big, small, self.windows, groups=self.groups
        )
        outputs = small.shape[-1]
        if gradients.shape[-1] == outputs:  # (n, K·i, g·o)
            return Held(gradients, self.shape)
        # (n, o, K·i)
        window_size = self.windows.taps * big.shape[-1]
        return Held(
            gradients, self.shape, [1, 0], unpermuted=[outputs, window_size]
        )

    def _rank(self, method):
        """Return what orders methods: those that hold too much come last."""
        window_size = self.windows.taps * self.big.shape[-1] // self.groups
        holds_too_much = window_size * self.small.shape[-1] > HELD
        cost = self._costs.get(method, math.inf)
        return method in _GRADIENTS and holds_too_much, cost


def _check_method(method):
    if method not in METHODS:
        raise ValueError(
            f"`method` expected one of {', '.join(map(repr, METHODS))}. "
            f"Received: method={method!r}"
        )
