"""Matrices whose rows are gradients: many shapes, conflicts and scales."""

import numpy as np


def _normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def _classes():
    """Two groups of rows, each against the other, as of two classes."""
    signs = np.repeat([1.0, -1.0], [5, 7])[:, None]
    return signs * (1 + 0.3 * _normal(5, 12, 30))


def _lengths():
    rows = _normal(6, 6, 20)
    return rows * np.logspace(-2, 2, 6)[:, None]


def _equal():
    rows = _normal(7, 5, 9)
    return np.concatenate([rows, rows[:2]])


#: The second entry tells whether the weights of every program are unique.
MATRICES = {
    "two": (_normal(0, 2, 5), True),
    "against": (np.array([[1.0, 0.2, 0.0], [-0.9, 0.3, 0.1]]), True),
    "agreeing": (np.abs(_normal(1, 4, 6)), True),
    "three": (_normal(2, 3, 4), True),
    "wide": (_normal(3, 8, 50), True),
    "many": (_normal(4, 24, 40), True),
    "classes": (_classes(), True),
    "lengths": (_lengths(), True),
    "dependent": (_normal(8, 9, 4), False),
    "equal": (_equal(), False),
}
PREFERENCE = [0.2, 0.5, 0.3]
"""Of the matrix "three"."""
