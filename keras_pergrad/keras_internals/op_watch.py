"""A look at each op that runs.

Private names in use:
`tensorflow.python.framework.op_callbacks.add_op_callback`,
`tensorflow.python.framework.op_callbacks.remove_op_callback`.
"""

import contextlib

from tensorflow.python.framework import op_callbacks


@contextlib.contextmanager
def each_op(note):
    """Have `note` called for each op that runs, or is made, inside."""
    op_callbacks.add_op_callback(note)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(note)
