"""A check whether XLA compiles the traced graph: its best methods differ.

Without the private name the methods for plain graphs are used. They are also
correct under XLA, but slow.

Private names in use:
`tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext`.
"""

import tensorflow as tf

try:
    from tensorflow.python.ops import control_flow_util
except ImportError:
    control_flow_util = None


def in_xla():
    """Tell whether a function with `jit_compile=True` is traced."""
    if tf.executing_eagerly() or control_flow_util is None:
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)
