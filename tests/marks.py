"""Marks for parameters of tests."""

import pytest


def few(values, quick, slow=None):
    """Return parameters of which all but a few are slow tests.

    Args:
        values: the parameters; a tuple is one for several arguments.
        quick: those that are tried with every change.
        slow: those of the others that CI tries, too: all if None. What is
            left is exhaustive.
    """
    slow = values if slow is None else slow
    left = (set(quick) | set(slow)) - set(values)
    assert not left, f"{left} are no parameters"

    def marked(value):
        if value in quick:
            return value
        mark = pytest.mark.slow if value in slow else pytest.mark.exhaustive
        arguments = value if isinstance(value, tuple) else (value,)
        return pytest.param(*arguments, marks=mark)

    return [marked(value) for value in values]
