"""Random projections of gradients: a matrix for each side."""

import copy
import math

import tensorflow as tf

from keras_pergrad.factors import wide
from keras_pergrad.influence.projection_sides import PartOfSide, Side

#: A CPU's convolutions multiply by so many columns at once.
BLOCK = 16


class Projection:
    """A random linear map from gradients of a variable to a few numbers.

    A gradient is seen as a matrix G, of all axes but the last by the last one.
    Its projection is P_inᵀ G P_out, with random signs in both (LoGra, Choe et
    al., arXiv 2405.13954), so that sums of outer products need no gradient:
    Σ a ⊗ b becomes Σ (a P_in) ⊗ (b P_out). A side not longer than its share
    stays as it is, and so does a variable of at most `size` entries. Where it
    wastes nothing, the first side has a multiple of sixteen numbers. Inner
    products are kept in the mean: E⟨Pg, Ph⟩ = ⟨g, h⟩.

    It depends on its arguments alone, on whatever machine. Its matrices, in
    float32, are made at first use. That of a side of 2,048 numbers or more has
    one entry in each row: a table's rows are then added, not multiplied.

    Args:
        shape: the variable's shape.
        size: how many numbers a gradient may become, at least 1.
        seed: an integer, or a tuple of them, as (seed, index of the variable).

    Attributes:
        shape, seed: as given.
        size: k_in · k_out, at most what was given.
    """

    def __init__(self, shape, size, seed):
        self.shape = tuple(shape)
        if any(length is None for length in self.shape):
            raise ValueError(
                "`shape` expected the shape of a variable, all of it known. "
                f"Received: shape={self.shape}"
            )
        if size < 1:
            raise ValueError(f"`size` must be at least 1. Received: {size}")
        self.seed = tuple(seed) if isinstance(seed, (tuple, list)) else seed
        columns = self.shape[-1] if len(self.shape) > 1 else 1
        rows = math.prod(self.shape[:-1] if len(self.shape) > 1 else self.shape)
        sizes = _side_sizes(rows, columns, int(size))
        text = f"{self.seed}"
        self.inputs = Side(rows, sizes[0], f"{text}, inputs")
        self.outputs = Side(columns, sizes[1], f"{text}, outputs")

    @property
    def size(self):
        """How many numbers a gradient becomes."""
        return self.inputs.size * self.outputs.size

    def of_gradients(self, gradients):
        """Return the projections of written-out gradients (n, *shape)."""
        gradients = wide(tf.convert_to_tensor(gradients))
        sides = self.inputs.length, self.outputs.length
        partial = self.outputs.apply(tf.reshape(gradients, [-1, *sides]))
        if self.inputs.is_identity:
            return tf.reshape(partial, [-1, self.size])
        if self.inputs.is_matrix:
            matrix = self.inputs.matrix(partial.dtype)
            partial = tf.einsum("nac,ab->nbc", partial, matrix)
        else:
            partial = self.inputs.apply(tf.linalg.matrix_transpose(partial))
            partial = tf.linalg.matrix_transpose(partial)
        return tf.reshape(partial, [-1, self.size])

    def of_sides(self, rows, columns):
        """Return Σ_t rows ⊗ columns, of (n, T, k_in) and (n, T, k_out)."""
        products = tf.matmul(rows, columns, transpose_a=True)
        return tf.reshape(products, [-1, self.size])

    def in_shape(self, shape):
        """Return the same map for another shape with the same last axis."""
        projection = copy.copy(self)
        projection.shape = tuple(shape)
        return projection

    def of_last(self, start, length):
        """Return the same map for some entries of the variable's last axis."""
        projection = copy.copy(self)
        projection.shape = (*self.shape[:-1], length)
        if len(self.shape) > 1:
            projection.outputs = PartOfSide(self.outputs, start, length)
        else:
            projection.inputs = PartOfSide(self.inputs, start, length)
        return projection


def projections(shapes, size, seed):
    """Return a projection for each variable, to `size` numbers in total.

    Variables that are small stay as they are; the others share what is left
    evenly.
    """
    shapes = [tuple(shape) for shape in shapes]
    if size < len(shapes):
        raise ValueError(
            f"`size` must be at least {len(shapes)}, a number for each "
            f"variable. Received: size={size}"
        )
    entry_counts = [math.prod(shape) for shape in shapes]
    # The smallest first: what they do not need is shared by the others.
    shares, remaining = {}, size
    for handled, k in enumerate(
        sorted(range(len(shapes)), key=entry_counts.__getitem__)
    ):
        shares[k] = max(
            min(entry_counts[k], remaining // (len(shapes) - handled)), 1
        )
        remaining -= shares[k]
    return [
        Projection(shape, shares[k], (seed, k))
        for k, shape in enumerate(shapes)
    ]


def _side_sizes(rows, columns, size):
    """Return the sizes of two sides, which multiply to at most `size`."""
    if rows * columns <= size:
        return rows, columns
    side = math.isqrt(size)
    if columns <= side:
        return min(rows, size // max(columns, 1)), columns
    if rows <= side:
        return rows, min(columns, size // max(rows, 1))
    if side > BLOCK:
        # Not where columns are so few that it would waste numbers.
        side = max(side // BLOCK * BLOCK, size // columns)
        return side, min(columns, size // side)
    # With the smaller remainder: 80 is 8 · 10, not 8 · 8.
    return min(rows, size // side), side
