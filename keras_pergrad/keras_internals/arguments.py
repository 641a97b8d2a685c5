"""What is asked of arguments that are numbers."""

import operator

import numpy as np


def positive_integer(name, value):
    """An argument as an `int`; NumPy's integers are taken, too.

    Raises:
        ValueError: it is none, or below 1.
    """
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
