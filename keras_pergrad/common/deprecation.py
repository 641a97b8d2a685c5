"""Ways of calling that still work for one version, with a warning."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def former(*positions: str, **names: str) -> Callable[[F], F]:
    """Accept former positional arguments, and old names of arguments."""

    def decorate(function: F) -> F:
        taken = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD
        ]

        @functools.wraps(function)
        def accepting(*given, **kwargs):
            given, more = given[: len(taken)], given[len(taken) :]
            if len(more) > len(positions):
                return function(*given, *more, **kwargs)  # raises TypeError
            moved = dict(zip(positions, more))
            renamed = {old: new for old, new in names.items() if old in kwargs}
            for old, new in renamed.items():
                moved[new] = _single(function, new, kwargs.pop(old), moved)
            for name in moved:
                _single(function, name, None, kwargs)
            if more:
                _warn(
                    function,
                    ", ".join(f"{n}=..." for n in positions[: len(more)]),
                    "by name",
                )
            for old, new in renamed.items():
                _warn(function, f"{new}=...", f"instead of {old}=")
            return function(*given, **kwargs, **moved)

        return accepting  # pyright: ignore[reportReturnType]

    return decorate


def _single(function, name, value, known):
    """Return the value of an argument that must not be given twice."""
    if name in known:
        raise TypeError(
            f"{_name(function)} got multiple values for argument {name!r}"
        )
    return value


def _warn(function, what, how):
    warnings.warn(
        f"{_name(function)}: give {what} {how}. The old way will be gone in "
        "the next version.",
        DeprecationWarning,
        stacklevel=3,
    )


def _name(function):
    return f"{function.__qualname__.removesuffix('.__init__')}()"
