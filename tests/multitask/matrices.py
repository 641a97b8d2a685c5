"""Matrices whose rows are gradients: many shapes, conflicts and scales."""

import numpy as np
import tensorflow as tf


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def traced(aggregation, dtype="float64", *, xla=False):
    """An aggregation's weights by a Gramian, traced once for all sizes."""
    return tf.function(
        aggregation.gramian_weights,
        input_signature=[tf.TensorSpec([None, None], dtype)],
        autograph=False,
        jit_compile=xla,
    )


def _classes():
    """Two groups of rows, each against the other, as of two classes."""
    signs = np.repeat([1.0, -1.0], [5, 7])[:, None]
    return signs * (1 + 0.3 * normal(5, 12, 30))


#: The second entry tells whether the weights of every program are unique.
MATRICES = {
    "two": (normal(0, 2, 5), True),
    "against": (np.array([[1.0, 0.2, 0.0], [-0.9, 0.3, 0.1]]), True),
    "agreeing": (np.abs(normal(1, 4, 6)), True),
    "three": (normal(2, 3, 4), True),
    "wide": (normal(3, 8, 50), True),
    "many": (normal(4, 24, 40), True),
    "classes": (_classes(), True),
    "lengths": (normal(6, 6, 20) * np.logspace(-2, 2, 6)[:, None], True),
    "dependent": (normal(8, 9, 4), False),
    "equal": (normal(7, 5, 9)[[0, 1, 2, 3, 4, 0, 1]], False),
}
PREFERENCE = [0.2, 0.5, 0.3]
"""Of the matrix "three"."""
