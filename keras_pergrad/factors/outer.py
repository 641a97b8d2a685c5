"""The factor of matrix-like kernels: a sum of outer products."""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_pergrad.factors import two_sides
from keras_pergrad.factors.by_chunks import squares_by_chunks
from keras_pergrad.factors.kronecker import Kronecker
from keras_pergrad.factors.rounding import (
    for_weighted_products,
    squares_of_products,
)
from keras_pergrad.factors.sample_gradients import (
    SampleGradients,
    expand,
    in_shape,
    in_type,
    inner_products,
    squares,
    squares_by_sample,
    weighted,
)
from keras_pergrad.keras_internals.xla import in_xla


class Rates(NamedTuple):
    """How long TensorFlow takes, on two CPU cores.

    The unit is a multiplication in a product of many rows.

    Attributes:
        gram: for a multiplication in a Gram matrix.
        hold: to hold a number of a gradient.
        hold_gram: to hold one of a Gram matrix, or of a factor that is
            multiplied by weights.
    """

    gram: float
    hold: float
    hold_gram: float


PLAIN = Rates(gram=1.2, hold=32, hold_gram=32)
# It is slow to write the products of single samples.
XLA = Rates(gram=1.4, hold=240, hold_gram=60)
#: A sample's gradient with more entries is not held to save time.
HELD = 2**17
#: Fewer multiplications for a sample are not worth some more ops.
WORTH = 2**18


class Outer(SampleGradients):
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

    rows = ("x", "dz", "_gradients")

    def __init__(
        self, x, dz, shape=None, perm=None, unpermuted=None, method=None
    ):
        self.x, self.positions = _positions(x)
        self.dz, _ = _positions(dz)
        self.shape = shape or [x.shape[-1], dz.shape[-1]]
        self.perm, self.unpermuted = perm, unpermuted
        self.method = method
        self._gradients = None

    def chosen_method(self):
        """How the norms are computed: "product", "gram" or "full"."""
        if self.positions == 1:
            return "product"
        if self.method:
            return self.method
        if self.positions is None:
            return "full"
        return _cheaper(self.positions, *self._features)

    @property
    def _features(self) -> Any:
        return self.x.shape[-1], self.dz.shape[-1]

    def sum_method(self):
        return "held" if self.chosen_method() == "full" else "matmul"

    def norm_bytes(self, n):
        i, o = self._features
        numbers = {
            "product": i + o,
            "full": i * o,
            "gram": 2 * (self.positions or 0) ** 2,
        }[self.chosen_method()]
        return n * numbers * self.x.dtype.size

    def squared_norms(self):
        method = self.chosen_method()
        if method == "product":
            return squares_by_sample(self.x) * squares_by_sample(self.dz)
        if method == "full":
            return squares_by_sample(self._matrices())
        inputs = tf.matmul(self.x, self.x, transpose_b=True)
        outputs = tf.matmul(self.dz, self.dz, transpose_b=True)
        squares = squares_of_products(inputs * outputs, self.x, self.dz)
        return for_weighted_products(squares, self.x, self.dz)

    def weighted_sum(self, weights):
        if self._gradients is not None:
            before = self.shape if self.perm is None else self.unpermuted
            return self._shaped(weighted(self._gradients, weights, before))
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
        return self._shaped(tf.matmul(x, dz, transpose_a=True))

    def dot(self, direction):
        matrix = self._unshaped(in_type(direction, self.x.dtype))
        if self._gradients is not None:
            return inner_products(self._gradients, matrix)
        i, o = self._features
        # Of both sides the narrower one is written.
        if o < i:
            products = tf.matmul(self.x, matrix) * self.dz
        else:
            products = tf.matmul(self.dz, matrix, transpose_b=True) * self.x
        return tf.reduce_sum(products, [1, 2])

    def sum_of_squares(self):
        if self._gradients is not None:
            total = squares(self._gradients)
        elif self.positions == 1:
            x, dz = (tf.square(t[:, 0]) for t in (self.x, self.dz))
            total = tf.matmul(x, dz, transpose_a=True)
        else:
            total = squares_by_chunks(
                _products, (self.x, self.dz), self._features
            )
        return self._shaped(total)

    def gram(self, other=None):
        other = self if other is None else other
        if not self._meets(other):
            return super().gram(other)
        x, dz = (in_shape(t, [-1, t.shape[-1]]) for t in (other.x, other.dz))
        if self.positions == other.positions == 1:
            inputs = tf.matmul(self.x[:, 0], x, transpose_b=True)
            return inputs * tf.matmul(self.dz[:, 0], dz, transpose_b=True)

        def of_sample(own):
            inputs, outputs = (
                tf.matmul(one, all_, transpose_b=True)
                for one, all_ in zip(own, (x, dz))
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

    def project(self, projection):
        matches = self._matches(projection)
        if self._gradients is not None:
            if matches:
                return projection.of_matrices(self._gradients)
            return super().project(projection)
        if matches and not self._is_less(projection):
            return projection.of_matrices(_products(self.x, self.dz))
        axes = self._axes_of_sides()
        if axes is None or not (matches or projection.inputs.is_matrix):
            return super().project(projection)
        return two_sides.project(self.x, self.dz, axes, projection)

    def _matches(self, projection):
        """Whether it is the same matrix that is projected."""
        sides = projection.inputs.length, projection.outputs.length
        return self.perm is None and sides == self._features

    def _is_less(self, projection):
        """Whether to project both sides costs less than the gradients do."""
        i, o = self._features
        t = self.positions
        if i * o > HELD or t is None or t == 1:
            return True
        k, m = projection.inputs.size, projection.outputs.size
        full = PLAIN.gram * (t * i * o + i * o * m + i * k * m)
        full += PLAIN.hold * (i * o + i * m)
        return cost_of_sides(t, i, o, projection) < full

    def dot_is_less(self, projection):
        if self._gradients is not None:
            return True
        i, o = self._features
        return dot_is_less(self.positions, i, o, projection)

    def axes(self):
        sides = self._axes_of_sides()
        return () if sides is None else tuple(sorted(sides[0]))

    def sides_are_axes(self):
        """Whether each axis of the variable is on one side."""
        return self._axes_of_sides() is not None

    def _axes_of_sides(self):
        inputs = self._features[0]
        return two_sides.axes_of_sides(
            self.shape, self.perm, self.unpermuted, inputs
        )

    def kronecker(self):
        axes = self._axes_of_sides()
        if axes is None:
            return super().kronecker()
        sides = []
        for tensor in self.sides():
            rows = in_shape(tensor, [-1, tensor.shape[-1]])
            sides.append(tf.matmul(rows, rows, transpose_a=True))
        count = tf.cast(tf.reduce_prod(tf.shape(self.x)[:2]), self.x.dtype)
        return Kronecker(sides[0], sides[1], count, self.axes())

    def sides(self):
        """Return x and dz with the variable's axes in their order."""
        axes = self._axes_of_sides() or ()
        held = self._without_blank(self.x, self.dz)
        return [
            two_sides.in_order(tensor, own, sorted(own), self.shape)
            for tensor, own in zip(held, axes)
        ]

    def rotated(self, inputs=None, outputs=None):
        axes = self._axes_of_sides()
        if axes is None:
            return super().rotated(inputs, outputs)
        x, dz = self.sides()
        return Outer(
            x if inputs is None else _mapped(x, inputs),
            dz if outputs is None else _mapped(dz, outputs),
        )

    def _meets(self, other):
        """Whether pairs of positions cost less than gradients do."""
        if not isinstance(other, Outer) or self.layout() != other.layout():
            return False
        if type(self).materialize is not type(other).materialize:
            return False
        if self._gradients is not None or other._gradients is not None:
            return False
        own, others = self.positions, other.positions
        if own is None or others is None:
            return False
        pairs = own * others
        i, o = self._features
        if pairs == 1 or (i * o > HELD and 2 * pairs < i * o):
            return True
        return PLAIN.gram * pairs * (i + o + PLAIN.hold_gram) < i * o

    def layout(self):
        """Return what factors of one variable must share to meet."""
        axes = [tuple(a or ()) for a in (self.perm, self.unpermuted)]
        return tuple(self.shape), *self._features, *axes, self.x.dtype

    def squared_norm_of_sum(self):
        if self._gradients is not None:
            return tf.reduce_sum(tf.square(tf.reduce_sum(self._gradients, 0)))
        # The whole batch as the positions of one sample: for a wide kernel
        # their Gram matrices are cheaper than the sum itself.
        x = tf.reshape(self.x, [1, -1, self.x.shape[-1]])
        dz = tf.reshape(self.dz, [1, -1, self.dz.shape[-1]])
        return Outer(x, dz).squared_norms()[0]

    def materialize(self):
        matrices = self._matrices()
        if self.perm is None:
            return tf.reshape(matrices, [-1, *self.shape])
        perm = [0, *(p + 1 for p in self.perm)]
        matrices = tf.reshape(matrices, [-1, *(self.unpermuted or [])])
        return tf.reshape(tf.transpose(matrices, perm), [-1, *self.shape])

    def _matrices(self):
        if self._gradients is None:
            # Also for one position, where it is three times as fast as a
            # product by broadcasting.
            self._gradients = _products(self.x, self.dz)
        return self._gradients

    def _shaped(self, matrix):
        if self.perm is None:
            return in_shape(matrix, self.shape)
        matrix = in_shape(matrix, self.unpermuted or [])
        return in_shape(tf.transpose(matrix, self.perm), self.shape)

    def _unshaped(self, direction):
        """Return a gradient of the variable as a matrix, (i, o)."""
        return unpermuted(direction, self.perm, self.unpermuted, self._features)


def cost_of_sides(t, i, o, projection, block=1):
    """Return what it costs to project both sides, (t, i) and (t, o).

    The first side is multiplied by so many columns at once.
    """
    k, m = projection.inputs.size, projection.outputs.size
    sides = t * (i * -(-k // block) * block + o * m + PLAIN.gram * k * m)
    return sides + PLAIN.hold_gram * (t * (k + m) + k * m)


def dot_is_less(t, i, o, projection, block=1):
    """Whether `dot` costs about as little as to project both sides."""
    if t is None:
        return False
    dot = t * i * o + PLAIN.hold_gram * t * min(i, o)
    return dot < cost_of_sides(t, i, o, projection, block) + WORTH


def unpermuted(direction, perm, before, shape):
    """Return what has become `direction` in the shape it had before."""
    if perm is not None:
        direction = tf.reshape(direction, [before[p] for p in perm])
        back = [list(perm).index(k) for k in range(len(perm))]
        direction = tf.transpose(direction, back)
    return in_shape(direction, shape)


def _products(x, dz):
    return tf.matmul(x, dz, transpose_a=True)


def _mapped(tensor, matrix):
    """Return the map of the last axis of (n, T, ·)."""
    matrix = tf.convert_to_tensor(matrix, tensor.dtype)
    return tf.einsum("nti,ik->ntk", tensor, matrix)


def _cheaper(t, i, o):
    """Whether norms and weighted sum cost less with Gram matrices."""
    if i * o > HELD:
        return "gram" if 2 * t**2 < i * o else "full"
    rates = XLA if in_xla() else PLAIN
    full = t * i * o + rates.hold * i * o
    # A batch of Gram matrices multiplies less fast than one large product.
    gram = rates.gram * t**2 * (i + o) + t * i * o
    gram += rates.hold_gram * (t**2 + t * min(i, o))
    return "gram" if gram < full else "full"


def _positions(tensor):
    """Return `tensor` as (n, T, features), and T (None if unknown)."""
    between = tensor.shape[1:-1]
    count = between.num_elements()
    features = tensor.shape[-1]
    if tensor.shape.rank == 3:
        return tensor, count
    if count is None:
        return tf.reshape(tensor, [tf.shape(tensor)[0], -1, features]), count
    return in_shape(tensor, [-1, count, features]), count
