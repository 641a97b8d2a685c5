"""The rules of ops: a factor from an op's other input and output gradient.

A rule takes a `Use` and the index of the weight among the op's inputs. It
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


def factor_of(use, input_index):
    """Return the per-sample gradients of a weight input of an op.

    An op without a rule is differentiated for one sample after the other.
    """
    reason = f"op {use.type} has no rule"
    if use.is_complex(input_index):
        # There the gradient of a product has the conjugate factor.
        reason = f"op {use.type} on complex numbers has no rule"
    elif use.type in _RULES:
        factor_or_reason = _RULES[use.type](use, input_index)
        if not isinstance(factor_or_reason, str):
            return factor_or_reason
        reason = f"op {use.type}: {factor_or_reason}"
    use.reason = reason
    return one_by_one(use, input_index)
