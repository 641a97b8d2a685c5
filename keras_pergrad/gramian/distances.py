"""Distances between gradients, from their inner products."""

import tensorflow as tf


def squared_distances(gramian):
    """Return ‖g_i - g_j‖² of all pairs, (m, m); never negative."""
    squares = tf.linalg.diag_part(gramian)
    distances = squares[:, None] + squares[None, :] - 2 * gramian
    return tf.maximum(distances, tf.zeros([], gramian.dtype))
