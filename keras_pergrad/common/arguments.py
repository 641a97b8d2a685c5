"""Checks of arguments: of their names, and of each kind with one message.

A message says what was expected, what was received, and what to do where that
does not follow. It needs no TensorFlow: comparisons of runs do without.
"""

import functools
import inspect
import math
import numbers
import operator
import os
import re
import reprlib
from typing import Any, TypeVar

from keras_pergrad.common.names import did_you_mean

Function = TypeVar("Function")


def named_arguments(function: Function) -> Function:
    """Decorate a function: it explains an argument that it does not have.

    And one that is neither on nor off: a text such as "False" would be on.
    """
    called: Any = function
    parameters = inspect.signature(called).parameters

    @functools.wraps(called)
    def explaining(*args, **kwargs):
        require_known(called.__qualname__, parameters, kwargs)
        _require_places(called.__qualname__, parameters, args)
        _require_switches(parameters, args, kwargs)
        return called(*args, **kwargs)

    explained: Any = explaining
    return explained


class NamedArguments:
    """A base of classes that explain an argument which they do not have."""

    def __new__(cls, *args, **kwargs):
        takes_none = cls.__init__ is object.__init__
        if takes_none and args:  # Python passes over them.
            raise TypeError(
                f"{cls.__name__}() expected no arguments. Received: "
                f"{', '.join(map(reprlib.repr, args))}"
            )
        parameters = inspect.signature(cls.__init__).parameters
        require_known(cls.__name__, {} if takes_none else parameters, kwargs)
        _require_places(cls.__name__, parameters, (None, *args))
        # A user's class may take other things where its default is a bool.
        module = getattr(cls.__init__, "__module__", "")
        if module.startswith("keras_pergrad."):
            _require_switches(parameters, (None, *args), kwargs)
        base = super().__new__
        return (
            base(cls) if base is object.__new__ else base(cls, *args, **kwargs)
        )


def require_known(owner, parameters, arguments):
    """Refuse arguments by name that are none of a signature's parameters."""
    unknown = [name for name in arguments if name not in parameters]
    if not unknown or _names_of(parameters, inspect.Parameter.VAR_KEYWORD):
        return
    known = [name for name in parameters if name != "self"]
    among = f"arguments among {', '.join(known)}" if known else "no arguments"
    name = unknown[0]
    raise TypeError(
        f"{owner}() expected {among}. Received: {name}="
        f"{reprlib.repr(arguments[name])}.{did_you_mean(name, known)}"
    )


def _require_places(owner, parameters, args):
    """Refuse arguments without a name that a signature takes by name."""
    by_place = _names_of(parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(args) <= len(by_place):
        return
    by_name = _names_of(parameters, inspect.Parameter.KEYWORD_ONLY)
    any_number = _names_of(parameters, inspect.Parameter.VAR_POSITIONAL)
    if any_number or not by_name:
        return
    known = [name for name in by_place if name != "self"]
    received = len(args) - (len(by_place) - len(known))
    listed = f"{', '.join(known)} without a name, others" if known else "all"
    raise TypeError(
        f"{owner}() expected {listed} as name=value: {', '.join(by_name)}. "
        f"Received: {received} without a name"
    )


def _names_of(parameters, kind):
    return [name for name, p in parameters.items() if p.kind == kind]


def _require_switches(parameters, args, kwargs):
    """Check each argument whose default is True or False, and `verbose`."""
    # All but what follows *args, which stands for any number.
    by_place = _names_of(parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, value in {**dict(zip(by_place, args)), **kwargs}.items():
        default = getattr(parameters.get(name), "default", None)
        if name == "verbose":
            require_switch(name, value, most=2)
        elif isinstance(default, bool):
            require_switch(name, value)


def require_switch(name, value, most=1):
    """Refuse what is no bool, nor an integer from 0 to `most`, 1 or 2."""
    is_integer = _is_bool(value) or isinstance(value, numbers.Integral)
    if not is_integer or int(value) not in range(most + 1):
        expected = "0, 1 or 2" if most == 2 else "True or False"
        raise ValueError(
            f"`{name}` expected {expected}. Received: {name}="
            f"{reprlib.repr(value)}"
        )


def _is_bool(value):
    return type(value).__name__ in ("bool", "bool_")  # NumPy's, too


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
        return None if _is_bool(value) else operator.index(value)
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
