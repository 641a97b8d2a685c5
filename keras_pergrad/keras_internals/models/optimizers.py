"""Optimizers: those inside of others, and their inner state.

Private names in use: `Adam._momentums`, `_velocities`;
`Optimizer._get_variable_index`, `_exclude_from_weight_decay`,
`_exclude_from_weight_decay_pattern`.
"""


def nested_optimizers(optimizer):
    """List an optimizer and all inside of it, from the outside in.

    A `LossScaleOptimizer` has one, a `MultiOptimizer` (Keras 3.13 and later)
    one for each part of the variables; these apply the gradients.
    """
    # A `MultiOptimizer` whose parts a function chooses has them once built.
    optimizers: list = []
    pending = [optimizer]
    while pending:
        current = pending.pop(0)
        if current is None or any(current is other for other in optimizers):
            continue
        optimizers.append(current)
        pending.append(getattr(current, "inner_optimizer", None))
        pending += getattr(current, "optimizers", None) or []
    return optimizers


def learning_rate(optimizer):
    """Return the learning rate of the innermost optimizer's next update."""
    rates = [
        nested.learning_rate
        for nested in nested_optimizers(optimizer)
        if getattr(nested, "inner_optimizer", None) is None
    ]
    return rates[0]


def accumulating_optimizer(optimizer):
    """Return the first optimizer inside that accumulates, or None."""
    for nested in nested_optimizers(optimizer):
        if getattr(nested, "gradient_accumulation_steps", None):
            return nested
    return None


def adam_moments(optimizer, variable):
    """Return a variable's position, its first and its second moment."""
    k = optimizer._get_variable_index(variable)
    return k, optimizer._momentums[k], optimizer._velocities[k]


def copy_decay_exclusions(source, target):
    """Leave out of a target's weight decay what a source leaves out."""
    for name in (
        "_exclude_from_weight_decay",
        "_exclude_from_weight_decay_pattern",
    ):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
