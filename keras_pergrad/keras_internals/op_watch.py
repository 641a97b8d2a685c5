"""The ops that TensorFlow knows, their kernels, and a look at each that runs.

Private names in use:
`tensorflow.python.framework.op_callbacks.add_op_callback`,
`tensorflow.python.framework.op_callbacks.remove_op_callback`,
`tensorflow.python.framework.op_def_registry.get`,
`tensorflow.python.framework.kernels.get_registered_kernels_for_op`,
`Operation._set_attr`, the op attribute `_grappler_do_not_remove`.
"""

import contextlib

import tensorflow as tf
from tensorflow.python.framework import (
    kernels,
    op_callbacks,
    op_def_registry,
)


@contextlib.contextmanager
def each_op(note):
    """Have `note` called for each op that runs, or is made, inside.

    Args:
        note: `note(op_type, inputs, attrs, outputs, op_name, graph)`.
    """
    op_callbacks.add_op_callback(note)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(note)


def op_definition(op_type):
    """Return the `OpDef` of a type of op, or None."""
    return op_def_registry.get(op_type)


def registered_kernels(op_type):
    """Return the kernels registered for a type of op, in this process."""
    return tuple(kernels.get_registered_kernels_for_op(op_type).kernel)


def keep_op(op):
    """Keep TensorFlow's optimisation from dropping an op."""
    op._set_attr("_grappler_do_not_remove", tf.compat.v1.AttrValue(b=True))
