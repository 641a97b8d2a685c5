"""Squared norms that rounding has not made too small.

Clipping relies on it: a norm that is too small lets a sample keep too much.
"""

import math

import tensorflow as tf

from keras_pergrad.factors.written_out import integers, zero
from keras_pergrad.keras_internals.tensorflow.settings import in_xla


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
    flat_products = tf.reshape(products, integers(-1, groups, count * count))
    axes = integers(1, 2)
    # Every (T + 1)th entry of a flat T × T matrix is on its diagonal.
    diagonal_sum = tf.reduce_sum(flat_products[:, :, :: count + 1], axes)
    return rounded_up(tf.reduce_sum(flat_products, axes), diagonal_sum, *sides)


def rounded_up(total, magnitudes, *sides):
    """Add what rounding may have taken from sums that cancel in part.

    Args:
        total: the sums, (n,).
        magnitudes: the sums of the sizes of their terms, (n,).
        sides: the tensors whose last axes were added up for the terms.
    """
    unit = 2.0**-52 if total.dtype == tf.float64 else 2.0**-23
    # Measured: 8 units at most. XLA adds one product after the other.
    sum_length = max(side.shape[-1] or 0 for side in sides)
    units = 8 + math.sqrt(sum_length) if in_xla() else 8
    margin = magnitudes * (unit * units)
    return tf.maximum(total + margin, zero(total.dtype))
