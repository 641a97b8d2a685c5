"""Type rules of the user, for ops that the package does not know."""

from keras_pergrad.samples.types.type_rules import OWN, RULES


def register_type_rule(*op_types, replace=False):
    """Register a function as the type rule of ops; a decorator.

    A type says where a tensor has its samples, and that none are mixed: see
    `keras_pergrad.types`. An op without a rule is refused by the per-sample
    modes. The rule is a promise that nothing checks: wrong, it makes
    gradients wrong.

    Args:
        *op_types: types of ops, as in `tensor.op.type`.
        replace: whether an existing rule may be replaced.

    The function is `rule(op, types)`. `types` has a type for each input, at
    least one of which is not `Free`; `op` has `inputs`, `outputs`, `type`,
    `attribute(name)`, `rank(k)` and `shape(k)` of input k, `n`, the number of
    samples, and `number(k)`, an input's value where shapes alone determine
    it. It returns one type for all outputs or a list of them, or raises
    `types.Mixes(reason)`.

    Raises:
        TypeError: a type of op is no string.
        ValueError: it has a rule already and `replace` is false.

    Example:

    >>> import keras_pergrad as kpg
    >>> @kpg.register_type_rule("MyNormalize", replace=True)
    ... def my_normalize(op, types):
    ...     samples = types[0]
    ...     last = op.rank(0) - 1
    ...     if isinstance(samples, kpg.types.At) and samples.axis == last:
    ...         raise kpg.types.Mixes("normalises over the samples")
    ...     return samples
    """
    for one in op_types:
        if not isinstance(one, str):
            raise TypeError(
                "`op_types` expected the types of ops, strings such as "
                f"'MatMul'. Received: {one!r}"
            )
        if one in {**RULES, **OWN} and not replace:
            raise ValueError(
                f"op {one} has a type rule already. Pass replace=True to "
                "replace it."
            )

    def register(function):
        OWN.update(dict.fromkeys(op_types, function))
        return function

    return register
