"""Marks for parameters of tests."""

import pytest


def few(values, quick):
    """Return parameters of which all but a few are slow tests.

    Args:
        values: the parameters; a tuple is one for several arguments.
        quick: those that are tried with every change.
    """
    left = set(quick) - set(values)
    assert not left, f"{left} are no parameters"
    return [
        value
        if value in quick
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=pytest.mark.slow,
        )
        for value in values
    ]
