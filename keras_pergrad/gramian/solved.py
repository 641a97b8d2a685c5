"""The end of a step whose program in the graph was not solved."""

import tensorflow as tf


def require_solved(aggregation, solved, weights):
    """Return weights; fail where they are none, which under XLA are zero."""
    text = _NOT_SOLVED.format(aggregation)
    check = tf.debugging.Assert(solved, [text])
    with tf.control_dependencies([check] if check is not None else []):
        # XLA leaves assertions out.
        return tf.where(solved, weights, tf.zeros_like(weights))


_NOT_SOLVED = (
    "The weights of {} were not found: the Gramian of the gradients is too "
    "near to one without an inverse, or its weights cancel. No weight has "
    "changed. Expected gradients that are not equal or opposite but for "
    "rounding, nor millions of times as long as others; scale the losses by "
    "`loss_weights`, compute in float64, raise `reg_eps` if it has one, or "
    "use another aggregation."
)
