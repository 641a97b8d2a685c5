"""Factors that are asked something, and then are as they were."""

import contextlib


@contextlib.contextmanager
def unchanged_factors(factors):
    """Let factors hold no more than they did when this ends."""
    held = [
        (part, dict(vars(part)))
        for factor in factors
        if factor is not None
        for part in factor.holders()
    ]
    try:
        yield
    finally:
        for part, attributes in held:
            vars(part).clear()
            vars(part).update(attributes)
