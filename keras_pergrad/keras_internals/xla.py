"""A check whether XLA compiles the traced graph, and a gradient that it lacks.

XLA's best methods differ. Without the private names the methods for plain
graphs are used. They are also correct under XLA, but slow. A slice updated by
XLA's own op is the gradient of a slice there; Keras has it on all devices.

Private names in use:
`tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext`,
`tensorflow.compiler.tf2xla.python.xla.dynamic_update_slice`.
"""

import contextlib

import tensorflow as tf

try:
    from tensorflow.python.ops import control_flow_util
except ImportError:
    control_flow_util = None
try:
    from tensorflow.compiler.tf2xla.python.xla import dynamic_update_slice
except ImportError:
    dynamic_update_slice = None


def in_xla():
    """Tell whether a function with `jit_compile=True` is traced."""
    if tf.executing_eagerly() or control_flow_util is None:
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def _of_updated_slice(op, gradient):
    """Return the gradients of `XlaDynamicUpdateSlice`, which has none."""
    into, part, begins = op.inputs
    # XLA moves a part that would reach beyond the end back into the tensor.
    room = tf.cast(tf.shape(into) - tf.shape(part), begins.dtype)
    begins = tf.maximum(tf.minimum(begins, room), 0)
    assert dynamic_update_slice is not None
    around = dynamic_update_slice(gradient, tf.zeros_like(part), begins)
    inside = tf.slice(gradient, begins, tf.shape(part, begins.dtype))
    return around, inside, None


if dynamic_update_slice is not None:
    with contextlib.suppress(KeyError):  # TensorFlow has one.
        tf.RegisterGradient("XlaDynamicUpdateSlice")(_of_updated_slice)
