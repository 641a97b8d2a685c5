"""Gramians in units of their trace."""

import tensorflow as tf

from keras_pergrad.gramian.spectrum import eigh, rounding

#: The least eigenvalue of a Gramian with the trace 1, to have an inverse.
LEAST = 1e-9


def normalized(gramian, least):
    """Return a Gramian divided by its trace; zero where that is below least."""
    trace = tf.linalg.trace(gramian)
    small = trace < least
    safe = tf.where(small | (trace <= 0), tf.ones_like(trace), trace)
    return tf.where(small, tf.zeros_like(gramian), gramian / safe)


def definite(gramian):
    """Return a Gramian in float64 with eigenvalues of `LEAST` or more."""
    # Rounding makes some negative, where gradients depend on each other.
    least = max(LEAST, rounding(gramian))
    gramian = tf.cast(gramian, tf.float64)
    values, vectors = eigh(gramian)
    raised = tf.maximum(values, least)
    added = tf.matmul(vectors * (raised - values), vectors, transpose_b=True)
    return gramian + (added + tf.transpose(added)) / 2
