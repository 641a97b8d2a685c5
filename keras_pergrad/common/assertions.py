"""Assertions in the graph, for conditions that only a step's numbers tell."""

import tensorflow as tf


def only_if(condition, data):
    """Return a context whose ops run only if a condition holds.

    Otherwise they fail with an `InvalidArgumentError` that shows `data`, a list
    of texts and tensors. XLA leaves assertions out, so that what runs inside
    must not give a plausible number where the condition does not hold.
    """
    # Eagerly `Assert` raises by itself and returns None.
    check = tf.debugging.Assert(condition, data)
    return tf.control_dependencies([] if check is None else [check])
