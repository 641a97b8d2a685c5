"""The moments that Keras's Adam keeps for each variable.

Private names in use: `Adam._momentums`, `_velocities`;
`Optimizer._get_variable_index`, `_exclude_from_weight_decay`,
`_exclude_from_weight_decay_pattern`.
"""


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
