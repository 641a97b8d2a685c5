"""Per-sample gradients from the ops that use the weights."""

from keras_pergrad.proof.traced_aside import (
    added_powers,
    counters,
    loss_power,
    refusals,
    vouched_ops,
)
from keras_pergrad.uses import (  # noqa: F401
    contraction_rules,
    convolution_rules,
    op_rules,
    weight_products,
)
from keras_pergrad.uses.traced_step import (
    TracedStep,
    factor_of_uses,
    sum_of_outputs,
)

__all__ = [
    "TracedStep",
    "added_powers",
    "counters",
    "factor_of_uses",
    "loss_power",
    "refusals",
    "sum_of_outputs",
    "vouched_ops",
]
