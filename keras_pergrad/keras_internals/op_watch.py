"""A look at each op that runs, and the ops that TensorFlow knows.

The types of a step need the second; only a report needs the first, which is
imported then.

Private names in use:
`tensorflow.python.framework.op_callbacks.add_op_callback`,
`tensorflow.python.framework.op_callbacks.remove_op_callback`,
`tensorflow.python.framework.op_def_registry.get`.
"""

import contextlib

from tensorflow.python.framework import op_def_registry


@contextlib.contextmanager
def each_op(note):
    """Have `note` called for each op that runs, or is made, inside."""
    from tensorflow.python.framework import op_callbacks

    op_callbacks.add_op_callback(note)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(note)


def op_definition(op_type):
    """Return the `OpDef` of a type of op, or None."""
    return op_def_registry.get(op_type)
