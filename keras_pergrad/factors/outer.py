"""The factor of matrix-like kernels: a sum of outer products."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.chunks import squares_by_chunks
from keras_pergrad.factors.full import Held, Permuted
from keras_pergrad.factors.rates import CPU, rates
from keras_pergrad.factors.rounding import squares_of_products
from keras_pergrad.factors.written_out import (
    expand,
    in_shape,
    in_type,
    squares_by_sample,
)

#: A sample's gradient with more entries is not held to save time.
HELD = 2**17


class Outer(Permuted):
    """Contributions Σ_t x_t ⊗ dz_t, t running over the positions.

    n samples, T positions, i inputs, o outputs.

    Args:
        x: (n, ..., i); the axes between are positions.
        dz: (n, ..., o), the same positions.
        shape: the variable's shape, of i·o elements; default: (i, o).
        perm: how the axes of (*, *) must be transposed to give `shape`;
            applied to the gradient reshaped to `unpermuted`.
        unpermuted: the shape before `perm`.
        method: "gram" or "full" forces a method for the norms; default: by
            cost. With one position the squared norm is ‖x‖²‖dz‖²
            (Goodfellow, arXiv 1510.01799); with few it is ⟨XXᵀ, DDᵀ⟩ (Li et
            al., arXiv 2110.05679); with many, gradients are materialised.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> kernel = factors.Outer(tf.ones((2, 3)), tf.ones((2, 4)))
    >>> kernel.squared_norms().numpy()
    array([12., 12.], dtype=float32)
    >>> kernel.weighted_sum(None).shape.as_list()
    [3, 4]
    """

    sampled: tuple[str, ...] = ("x", "dz")
    x: tf.Tensor
    dz: tf.Tensor
    #: How many positions a sample has; None where the shapes do not tell.
    positions: int | None

    def __init__(
        self,
        x: tf.Tensor,
        dz: tf.Tensor,
        shape: Sequence[int] | None = None,
        *,
        perm: Sequence[int] | None = None,
        unpermuted: Sequence[int] | None = None,
        method: str | None = None,
    ):
        self.x, self.positions = _positions(x)
        self.dz, _ = _positions(dz)
        self.shape: Sequence[int] = shape or [x.shape[-1], dz.shape[-1]]
        self.perm: Sequence[int] | None = perm
        self.unpermuted: Sequence[int] | None = unpermuted
        self.method: str | None = method

    def chosen_method(self) -> str:
        """How the norms are computed: "product", "gram" or "full"."""
        if self.positions == 1:
            return "product"
        if self.method:
            return self.method
        if self.positions is None:
            return "full"
        return _cheaper_method(self.positions, *self._features)

    @property
    def _features(self) -> Any:
        return self.x.shape[-1], self.dz.shape[-1]

    def sum_method(self) -> str:
        return "held" if self.chosen_method() == "full" else "matmul"

    def norm_bytes(self, n: int) -> int | None:
        i, o = self._features
        numbers = {
            "product": i + o,
            "full": i * o,
            "gram": 2 * (self.positions or 0) ** 2,
        }[self.chosen_method()]
        return n * numbers * self.x.dtype.size

    def squared_norms(self) -> tf.Tensor:
        method = self.chosen_method()
        if method == "product":
            return squares_by_sample(self.x) * squares_by_sample(self.dz)
        if method == "full":
            return squares_by_sample(_products(self.x, self.dz))
        inputs = tf.matmul(self.x, self.x, transpose_b=True)
        outputs = tf.matmul(self.dz, self.dz, transpose_b=True)
        return squares_of_products(inputs * outputs, self.x, self.dz)

    def held(self, pairs: bool = False) -> SampleGradients:
        """Return it with gradients written out, if the answers take them."""
        if pairs:
            is_written = not self._pairs_cost_less(self)
        else:
            is_written = self.chosen_method() == "full"
        if not is_written:
            return self
        return Held(
            _products(self.x, self.dz),
            self.shape,
            self.perm,
            unpermuted=self.unpermuted,
        )

    def weighted_sum(self, weights: tf.Tensor | None) -> tf.Tensor:
        x, dz = self.x, self.dz
        if weights is not None:
            # The narrower one costs less.
            i, o = self._features
            if i < o:
                x *= expand(weights, x)
            else:
                dz *= expand(weights, dz)
        x = in_shape(x, [-1, x.shape[-1]])
        dz = in_shape(dz, [-1, dz.shape[-1]])
        return self._restore_shape(tf.matmul(x, dz, transpose_a=True))

    def dot(self, direction: Any) -> tf.Tensor:
        direction = in_type(direction, self.x.dtype)
        matrix = self._as_matrix(direction, self._features)
        i, o = self._features
        # Of both sides the narrower one is written.
        if o < i:
            products = tf.matmul(self.x, matrix) * self.dz
        else:
            products = tf.matmul(self.dz, matrix, transpose_b=True) * self.x
        return tf.reduce_sum(products, [1, 2])

    def sum_of_squares(self) -> tf.Tensor:
        if self.positions == 1:
            x, dz = (tf.square(t[:, 0]) for t in (self.x, self.dz))
            total = tf.matmul(x, dz, transpose_a=True)
        else:
            total = squares_by_chunks(
                _products, (self.x, self.dz), self._features
            )
        return self._restore_shape(total)

    def gram(self, other: SampleGradients | None = None) -> tf.Tensor:
        other = self if other is None else other
        if not self._pairs_cost_less(other):
            return super().gram(other)
        x, dz = (in_shape(t, [-1, t.shape[-1]]) for t in (other.x, other.dz))
        if self.positions == other.positions == 1:
            inputs = tf.matmul(self.x[:, 0], x, transpose_b=True)
            return inputs * tf.matmul(self.dz[:, 0], dz, transpose_b=True)

        def of_sample(sides):
            inputs, outputs = (
                tf.matmul(side, other_side, transpose_b=True)
                for side, other_side in zip(sides, (x, dz))
            )
            # (positions, m · positions of the other)
            products = tf.reduce_sum(inputs * outputs, 0)
            products = tf.reshape(products, [-1, other.positions])
            return tf.reduce_sum(products, 1)

        return tf.map_fn(
            of_sample,
            (self.x, self.dz),
            fn_output_signature=tf.TensorSpec([None], self.x.dtype),
        )

    def _pairs_cost_less(self, other):
        """Whether pairs of positions cost less than gradients do."""
        if not isinstance(other, Outer) or self.layout() != other.layout():
            return False
        positions, other_positions = self.positions, other.positions
        if positions is None or other_positions is None:
            return False
        pairs = positions * other_positions
        i, o = self._features
        if pairs == 1 or (i * o > HELD and 2 * pairs < i * o):
            return True
        return (
            CPU.products.gram * pairs * (i + o + CPU.products.hold_gram) < i * o
        )

    def layout(self) -> tuple[Any, ...]:
        """Return what factors of one variable must share to meet."""
        axes = [tuple(a or ()) for a in (self.perm, self.unpermuted)]
        return tuple(self.shape), *self._features, *axes, self.x.dtype

    def squared_norm_of_sum(self) -> tf.Tensor:
        # The whole batch as the positions of one sample: for a wide kernel
        # their Gram matrices are cheaper than the sum itself.
        x = tf.reshape(self.x, [1, -1, self.x.shape[-1]])
        dz = tf.reshape(self.dz, [1, -1, self.dz.shape[-1]])
        return Outer(x, dz).squared_norms()[0]

    def materialize(self) -> tf.Tensor:
        return self._restore_shape(_products(self.x, self.dz), [-1])


def _products(x, dz):
    # Also for one position, where it is three times as fast as a product by
    # broadcasting.
    return tf.matmul(x, dz, transpose_a=True)


def _cheaper_method(t, i, o):
    """Return the cheaper method for norms and weighted sum together."""
    if i * o > HELD:
        return "gram" if 2 * t**2 < i * o else "full"
    rate = rates().products
    full = t * i * o + rate.hold * i * o
    # A batch of Gram matrices multiplies less fast than one large product.
    gram = rate.gram * t**2 * (i + o) + t * i * o
    gram += rate.hold_gram * (t**2 + t * min(i, o))
    return "gram" if gram < full else "full"


def _positions(tensor):
    """Return `tensor` as (n, T, features), and T (None if unknown)."""
    position_shape = tensor.shape[1:-1]
    count = position_shape.num_elements()
    features = tensor.shape[-1]
    if tensor.shape.rank == 3:
        return tensor, count
    if count is None:
        return tf.reshape(tensor, [tf.shape(tensor)[0], -1, features]), count
    return in_shape(tensor, [-1, count, features]), count
