"""Sums over the data, of which a Kronecker-factored curvature is made."""

import dataclasses

import tensorflow as tf

from keras_pergrad.factors.with_bias import WithBias, biases_of
from keras_pergrad.fisher_information.question import Question


@dataclasses.dataclass(frozen=True)
class TwoSides(Question):
    """The two sides of each block."""

    def of_factors(self, factors, scale):
        """Return (left, right, count, squares, bias or -1, axes) of each."""
        del scale
        blocks = _blocks(factors)
        return [b and _sides_of(*b) for b in blocks]


@dataclasses.dataclass(frozen=True)
class Corrections(Question):
    """The squares of gradients in a basis."""

    def of_factors(self, factors, scale, bases):
        """Return (squares,), (i, o), of each block."""
        del scale
        return [
            b and (_squares(b[0].rotated(*basis)),)
            for b, basis in zip(_blocks(factors), bases, strict=True)
        ]


def _squares(factor):
    """Return the sum of squares, of a table's rows, too, as one tensor."""
    return tf.convert_to_tensor(factor.sum_of_squares())


def _sides_of(factor, bias):
    found = factor.kronecker()
    squares = tf.reduce_sum(factor.squared_norms())
    axes = tf.constant(list(found.axes), tf.int32)
    return *found[:3], squares, tf.constant(bias), axes


def _blocks(factors):
    """Return (factor, place of its bias or -1) of each, None within others."""
    biases = biases_of(factors)
    taken = {k for k in biases if k is not None}
    return [
        None
        if factor is None or k in taken
        else (factor, -1)
        if bias is None
        else (WithBias(factor, factors[bias]), bias)
        for k, (factor, bias) in enumerate(zip(factors, biases))
    ]
