"""Mistakes of newcomers: their data, and a test for each of a table."""

import numpy as np
import pytest

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X[:, :3]
TEXTS = np.array([["a"] * 4] * 12)
CLASSES = np.arange(12) % 3


def each(told):
    """Give a test each mistake, with its error and what that says.

    Args:
        told: for each class of error a dict from what it says to a function
            that makes the mistake, or to a list of such functions.
    """
    cases = []
    for error, table in told.items():
        for match, mistakes in table.items():
            mistakes = mistakes if isinstance(mistakes, list) else [mistakes]
            cases += [(error, match, mistake) for mistake in mistakes]
    return pytest.mark.parametrize(("error", "match", "mistake"), cases)
