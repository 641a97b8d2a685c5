"""Advice on a stall: all rules, and the order of the advice.

A rule is a function of the `Facts` that returns an `Advice` or None. To add
one, write the function and list it in `RULES` of its file.
"""

from keras_pergrad.analysis.pipelines import (
    grain_advice,
    loader_advice,
    tfdata_advice,
)

RULES = (*tfdata_advice.RULES, *loader_advice.RULES, *grain_advice.RULES)


def advise(facts):
    """Return all advice that applies: mistakes first, then by gain."""
    given = [a for a in (rule(facts) for rule in RULES) if a is not None]
    return sorted(given, key=lambda a: (not a.is_mistake, -(a.gain_ms or 0.0)))
