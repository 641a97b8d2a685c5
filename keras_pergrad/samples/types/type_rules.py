"""The rules that give an op's outputs their types.

A rule is `rule(op, types)`: it takes a `TypedOp` and the types of its inputs,
of which at least one is not `Free`, and returns one type for all outputs or a
list of them. It raises `Mixes` with a reason, or `Untyped`.
"""

from keras_pergrad.samples.op_facts import op_types

RULES = {}
#: Rules of the user, by type of op; they go before those of the package.
OWN = {}


def type_rule(*names):
    """Decorate a function as the rule of ops, named as for `op_types`."""

    def register(function):
        for one in sorted(op_types(*names)):
            if one in RULES:
                raise ValueError(
                    f"op {one} has a type rule already: "
                    f"{RULES[one].__name__} in {RULES[one].__module__}. "
                    f"Received: {function.__name__}"
                )
            RULES[one] = function
        return function

    return register


def rule_of(op_type):
    """Return the rule of a type of op, or None."""
    return OWN.get(op_type, RULES.get(op_type))
