"""Marks on ops that TensorFlow's optimisation heeds.

Private names in use: `Operation._set_attr`, the op attribute
`_grappler_do_not_remove`.
"""

import tensorflow as tf


def keep_op(op):
    """Keep an op that only a time stamp waits for from being dropped."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))
