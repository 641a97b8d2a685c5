"""Gradients of ops of a graph that is still being built.

Private names in use:
`tensorflow.python.ops.gradients_util._GradientsHelper`, which differentiates
ops of the graph around a loop; the op attribute `_gradient_op_type`.
"""

from tensorflow.python.ops import gradients_util


def op_gradients(outputs, inputs, deltas, graph):
    """Return inputs' gradients; `graph` may be around that being built."""
    return gradients_util._GradientsHelper(
        outputs, inputs, deltas, src_graph=graph
    )


def has_own_gradient(attributes):
    """Whether a node with these attributes is of a `tf.custom_gradient`."""
    return "_gradient_op_type" in attributes
