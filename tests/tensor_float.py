"""Products on a CPU as a GPU may make them in TensorFloat-32.

Each operand keeps ten bits behind the first, rounded to the nearest or cut off.
"""

import contextlib

import pytest
import tensorflow as tf
from tensorflow.python.framework import func_graph

PRODUCTS = {
    "BatchMatMulV2",
    "Conv2D",
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
    "Einsum",
    "MatMul",
}


def _short(tensor, nearest):
    bits = tf.bitcast(tensor, tf.int32)
    if nearest:
        bits += 0x0FFF + tf.bitwise.bitwise_and(
            tf.bitwise.right_shift(bits, 13), 1
        )
    bits = tf.bitwise.bitwise_and(bits, ~0x1FFF)
    short = tf.bitcast(bits, tf.float32)
    return tensor + tf.stop_gradient(short - tensor)  # Exact, both.


@contextlib.contextmanager
def short_products(nearest):
    """Shorten the operands of all products that are traced inside."""
    graph = func_graph.FuncGraph
    original = graph._create_op_internal

    def create(self, op_type, inputs, *args, **kwargs):
        if op_type in PRODUCTS:
            inputs = [
                _short(t, nearest) if t.dtype == tf.float32 else t
                for t in inputs
            ]
        return original(self, op_type, inputs, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_create_op_internal", create)
        yield
