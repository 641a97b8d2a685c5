"""Marks on ops that TensorFlow's optimisation, or the types of a step, heed.

Private names in use: `Operation._set_attr`, the op attribute
`_grappler_do_not_remove`, and this package's own, `_keras_pergrad_mark`.
"""

import tensorflow as tf

#: What the mark of an op of this package is called. No name of a layer or
#: scope can be mistaken for it.
_MARK = "_keras_pergrad_mark"
SAME_FOR_ALL = b"same for all"
WHOLE_LOSS = b"whole loss"


def keep_op(op):
    """Keep an op that only a time stamp waits for from being dropped."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))


def same_for_all(tensor):
    """Return a tensor that is taken not to depend on the samples."""
    # For what a mode finds out about the model by calling it on samples, such
    # as whether a loss is a sum or a mean.
    return _marked(tensor, SAME_FOR_ALL)


def whole_loss(tensor):
    """Return the value of one loss, beside which others may be added."""
    return _marked(tensor, WHOLE_LOSS)


def mark_of(op):
    """Return the mark of an op, or None."""
    if op.type != "Identity":
        return None
    try:
        return op.get_attr(_MARK)
    except ValueError:
        return None


def _marked(tensor, mark):
    copy = tf.identity(tensor)
    if not tf.executing_eagerly():
        copy.op._set_attr(_MARK, tf.compat.v1.AttrValue(s=mark))
    return copy
