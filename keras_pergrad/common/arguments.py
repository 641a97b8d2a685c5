"""Checks of arguments, each kind with one message.

A message says what was expected, what was received, and what to do where that
does not follow. It needs no TensorFlow: comparisons of runs do without.
"""

import math
import numbers
import operator
import os
import re
import reprlib

import numpy as np

from keras_pergrad.common.names import did_you_mean


def is_number(value):
    """Whether it is a real number, of NumPy, too, and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def require_one_of(name, value, choices, *, advice=""):
    """Refuse an argument that is none of the choices: texts, integers, None."""
    kinds = str, numbers.Integral, type(None)
    is_bool = isinstance(value, bool)
    if isinstance(value, kinds) and not is_bool and value in choices:
        return
    advice = f".{did_you_mean(value, choices)}{advice}"
    expected = f"one of {', '.join(map(repr, choices))}"
    raise _refusal(name, value, expected, advice=advice)


def names_given(name, value):
    """Return names as a tuple; a text is one name."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple, set, frozenset)) and all(
        isinstance(entry, str) for entry in value
    ):
        return tuple(value)
    raise _refusal(name, value, "a list of names (texts)")


def text(name, value, alternative=""):
    """Return an argument that is a text, not an empty one."""
    if isinstance(value, str) and value.strip():
        return value
    raise _refusal(name, value, f"a text that is not empty{alternative}")


def path_text(name, value, expected):
    """Return a path as text; refuse numbers, which `open` takes for files."""
    if isinstance(value, (str, os.PathLike)) and os.fspath(value):
        return os.fspath(value)
    raise TypeError(f"`{name}` expected {expected}. Received: {name}={value!r}")


def function(name, value, takes=""):
    """Return an argument that can be called; `takes`: with what."""
    if callable(value):
        return value
    raise TypeError(
        f"`{name}` expected a function{takes}. Received: {name}={value!r}"
    )


def positive_integer(name, value, alternative=""):
    """Return an argument as an `int`; NumPy integers are accepted too."""
    number = _integer_or_none(value)
    if number is None or number < 1:
        raise _refusal(name, value, f"a positive integer{alternative}")
    return number


def seed_or_none(value):
    """Return a seed as an `int`, or None; refuse what Keras cannot take."""
    return None if value is None else _seed(value, "an integer or None")


def integer_seed(value):
    """Return a seed as an `int`; refuse None, too."""
    return _seed(value, "an integer")


def positive_number(name, value, alternative="", *, infinite=False):
    """Return an argument above 0 as a `float`; finite, unless `infinite`.

    `alternative`: what else is accepted, such as " or None".
    """
    if is_number(value) and value > 0 and (infinite or value < math.inf):
        return float(value)
    raise _refusal(name, value, f"a positive number{alternative}")


def number_from(name, value, low, *, high=math.inf, alternative=""):
    """Return a finite argument of at least `low`, at most `high`."""
    if is_number(value) and low <= value <= high and value < math.inf:
        return float(value)
    wanted = f"a finite number of at least {low}"
    if high < math.inf:
        wanted = f"a number from {low} to {high}"
    raise _refusal(name, value, f"{wanted}{alternative}")


def probability(name, value):
    """Return an argument between 0 and 1, neither of them, as a `float`."""
    if is_number(value) and 0 < value < 1:
        return float(value)
    raise _refusal(name, value, "a number between 0 and 1")


_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def parse_bytes(name, value):
    """Return an argument such as "8GB", "7.5GiB" or 8_000_000_000 in bytes."""
    size = None
    if isinstance(value, str):
        match = _SIZE_PATTERN.fullmatch(value)
        unit = match and _UNITS.get(match[2].lower())
        if match and unit:
            size = int(float(match[1]) * unit)
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if size is None or size < 1:
        expected = (
            "a positive number of bytes, or a text such as '8GB' (8 * 10**9 "
            "bytes), '8GiB' (8 * 2**30) or '500MB'"
        )
        raise _refusal(name, value, expected)
    return size


def _refusal(name, value, expected, *, advice=""):
    shown = repr(value)
    if len(shown) > 200:  # such as an array of numbers
        shown = reprlib.repr(value)
    return ValueError(
        f"`{name}` expected {expected}. Received: {name}={shown}{advice}"
    )


def _integer_or_none(value):
    try:
        is_bool = isinstance(value, (bool, np.bool_))
        return None if is_bool else operator.index(value)
    except TypeError:
        return None


def _seed(value, expected):
    try:
        seed = operator.index(value)
    except TypeError:
        raise _refusal("seed", value, expected) from None
    if not -(2**63) <= seed < 2**63:
        advice = ". Take a smaller one, such as seed % 2**63."
        expected = "at least -2**63 and below 2**63"
        raise _refusal("seed", value, expected, advice=advice)
    return seed
