"""Gramians in units of their trace."""

import math

import tensorflow as tf

from keras_pergrad.gramian.spectrum import eigh, rounding, units_of

#: The least eigenvalue of a matrix with the trace 1, to have an inverse.
LEAST = 1e-9


def normalized(gramian, least):
    """Return a Gramian divided by its trace; zero where that is below least."""
    trace = tf.linalg.trace(gramian)
    small = trace < least
    safe = tf.where(small | (trace <= 0), tf.ones_like(trace), trace)
    return tf.where(small, tf.zeros_like(gramian), gramian / safe)


def definite(gramian):
    """Return a Gramian in float64 that has an inverse.

    The eigenvalues of the rows' cosines become `LEAST` of their sum or more,
    so that a short gradient counts beside a long one. A row of zeros counts as
    one that is far shorter than all others.
    """
    # Rounding makes some negative, where gradients depend on each other.
    least = max(LEAST, rounding(gramian))
    lengths, cosines = units_of(gramian)
    there = lengths > 0
    shortest = tf.reduce_min(tf.where(there, lengths, _infinite(lengths)))
    shortest = tf.where(tf.math.is_finite(shortest), shortest, 1.0)
    lengths = tf.where(there, lengths, LEAST * shortest)
    cosines = tf.linalg.set_diag(cosines, tf.ones_like(lengths))
    values, vectors = eigh(cosines)
    rows = tf.cast(tf.size(lengths), tf.float64)
    raised = tf.maximum(values, least * rows)
    added = tf.matmul(vectors * (raised - values), vectors, transpose_b=True)
    cosines += (added + tf.transpose(added)) / 2
    return cosines * lengths * lengths[:, None]


def _infinite(like):
    return tf.fill(tf.shape(like), tf.constant(math.inf, like.dtype))
