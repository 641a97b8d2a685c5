"""The rules of ops: a factor from an op's other input and output gradient.

A rule takes a `Use` and the place of the weight among the op's inputs. It
returns `SampleGradients` of that input, or a string with the reason why it
does not serve the op.
"""

from keras_pergrad.samples.one_by_one import one_by_one

_RULES = {}


def op_rule(*names):
    """Decorate a function as the rule of ops; a name may hold several."""
    return registered(_RULES, names)


def registered(rules, names):
    """Return a decorator that makes a function the rule of these ops."""
    types = " ".join(names).split()

    def register(function):
        for one in types:
            if one in rules:
                raise ValueError(
                    f"op {one} has a rule already: {rules[one].__name__} in "
                    f"{rules[one].__module__}. Extend that one. "
                    f"Received: {function.__name__}"
                )
        rules.update(dict.fromkeys(types, function))
        return function

    return register


def factor_of(use, place):
    """Return the per-sample gradients of a weight input of an op.

    An op without a rule is differentiated for one sample after the other.
    """
    reason = f"op {use.type} has no rule"
    if use.is_complex(place):
        # There the gradient of a product has the conjugate factor.
        reason = f"op {use.type} on complex numbers has no rule"
    elif use.type in _RULES:
        found = _RULES[use.type](use, place)
        if not isinstance(found, str):
            return found
        reason = f"op {use.type}: {found}"
    use.reason = reason
    return one_by_one(use, place)
