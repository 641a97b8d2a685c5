"""The kernels that this process has.

Placement alone asks for them: without the private name the rest works.

Private name in use:
`tensorflow.python.framework.kernels.get_registered_kernels_for_op`.
"""

from tensorflow.python.framework import kernels


def registered_kernels(op_type):
    """Return the kernels that this process has for a type of op."""
    return tuple(kernels.get_registered_kernels_for_op(op_type).kernel)
