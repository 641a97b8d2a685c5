"""Checks of arguments that are numbers."""

import math
import operator

import numpy as np


def is_number(value):
    """Whether it is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def seed_or_none(value):
    """Return a seed as an `int`, or None; refuse what Keras cannot take."""
    try:
        seed = None if value is None else operator.index(value)
    except TypeError:
        raise ValueError(
            f"`seed` must be an integer or None. Received: seed={value!r}"
        ) from None
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise ValueError(
            "`seed` must be at least -2**63 and below 2**63. Received: "
            f"seed={value!r}. Take a smaller one, such as seed % 2**63."
        )
    return seed


def positive_integer(name, value):
    """Return an argument as an `int`; NumPy integers are accepted too."""
    try:
        is_truth = isinstance(value, (bool, np.bool_))
        number = 0 if is_truth else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return number


def positive_number(name, value):
    """Return a finite argument above 0 as a `float`."""
    if is_number(value) and 0 < value < math.inf:
        return float(value)
    raise ValueError(
        f"`{name}` must be a positive number. Received: {name}={value!r}"
    )


def number_at_least_zero(name, value):
    """Return a finite argument of at least 0 as a `float`."""
    if is_number(value) and 0 <= value < math.inf:
        return float(value)
    raise ValueError(
        f"`{name}` must be a number of at least 0. Received: {name}={value!r}"
    )
