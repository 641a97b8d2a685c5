"""The kernels that TensorFlow has for its ops, in this process.

Private name in use:
`tensorflow.python.framework.kernels.get_registered_kernels_for_op`.
"""

from tensorflow.python.framework import kernels


def registered_kernels(op_type):
    """Return the kernels that are registered for a type of op."""
    return tuple(kernels.get_registered_kernels_for_op(op_type).kernel)
