"""Squared norms that rounding has not made too small.

Clipping relies on it: a norm that is too small lets a sample keep too much.

In TensorFloat-32 each operand of a product is changed by a part u of itself.
Of a contribution G = Σ_t x_t ⊗ dz_t both the norm and the weighted sum are
products, so each is that of a G off by (2u + u²) S at most, where
S = Σ_t ‖x_t‖ ‖dz_t‖ does not cancel. Clipped by N + (4u + 2u²) S, with N as
computed, a sample keeps no more than the bound in the sum. Where products
are of whole gradients (or of one position), S is the norm itself.
"""

import math

import tensorflow as tf

from keras_pergrad.factors.sample_gradients import squares_by_sample
from keras_pergrad.factors.shared import integers, zero
from keras_pergrad.keras_internals import tensor_float
from keras_pergrad.keras_internals.xla import in_xla

#: What is lost, as a part of S; with room for its own rounding.
LOST = 4 * tensor_float.UNIT + 16 * tensor_float.UNIT**2


def squares_of_products(products, *sides):
    """Return squared norms, (n,), that rounding has not made too small.

    ‖Σ_t g_t‖² is the sum of the inner products of all g_t. Where these
    cancel, what is left is as small as the rounding of the largest of them,
    Σ_t ‖g_t‖² of some units in the last place. So much is added: of a sample
    whose positions do not cancel it is about a millionth, and a norm is never
    below the true one, which clipping relies on.

    Args:
        products: ⟨g_s, g_t⟩, of the shape (n, T, T) or (n, groups, T, T).
        sides: the tensors whose last axes were added up for them.
    """
    count = products.shape[-1] or tf.shape(products)[-1]
    groups = products.shape[1] if products.shape.rank > 3 else 1
    flat = tf.reshape(products, integers(-1, groups, count * count))
    axes = integers(1, 2)
    single = tf.reduce_sum(flat[:, :, :: count + 1], axes)
    return rounded_up(tf.reduce_sum(flat, axes), single, *sides)


def rounded_up(total, single, *sides):
    """Return sums that cancel in part, with what rounding may have taken.

    Args:
        total: the sums, (n,).
        single: the sums of the sizes of their terms, (n,).
        sides: the tensors whose last axes were added up for the terms.
    """
    unit = 2.0**-52 if total.dtype == tf.float64 else 2.0**-23
    # Measured: 8 units at most. XLA adds one product after the other.
    length = max(side.shape[-1] or 0 for side in sides)
    units = 8 + math.sqrt(length) if in_xla() else 8
    lost = single * (unit * units)
    return tf.maximum(total + lost, zero(total.dtype))


def for_weighted_products(squares, x, dz, overlap=None):
    """Return squared norms, (n,), of samples that are weighted in a product.

    Args:
        squares: the squared norms of Σ_t x_t ⊗ dz_t, (n,).
        x, dz: both sides, (n, ..., i) and (n, ..., o).
        overlap: in how many of the x_t an entry of `x` may be, where the axes
            between are others: both sides are measured as a whole then.
    """
    if not tensor_float.rounds_up(squares.dtype):
        return squares
    if overlap is not None:
        sizes = squares_by_sample(x) * squares_by_sample(dz)
        sizes = tf.sqrt(sizes * overlap)
    else:
        sizes = lengths(x) * lengths(dz)
        sizes = tf.reduce_sum(sizes, list(range(1, sizes.shape.rank)))
    return tf.square(tf.sqrt(squares) + LOST * sizes)


def for_weighted_gradients(norms):
    """Return norms, of any shape, of what is weighted as whole gradients."""
    if not tensor_float.rounds_up(norms.dtype):
        return norms
    return norms * (1 + LOST)


def lengths(tensor):
    """Return the norm of each vector on the last axis."""
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), -1))
