"""Means and variances with right second derivatives.

`tf.nn.moments` stops the gradient of the mean within the variance,
Σ (x − stop(mean))²: right for the first derivative, wrong for the second.
Keras's normalisation layers call it.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_state import bodies

_SCOPE = "moments"


@contextlib.contextmanager
def twice_differentiable():
    """Trace moments that can be differentiated twice; refuse all others.

    Raises:
        ValueError: what was traced inside calls a function that was traced
            before, with moments in it.
    """
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    with attribute(tf.nn, "moments", _moments):
        yield
    _require_none_stopped(graph.get_operations()[before:], set())


def _moments(x, axes, shift=None, keepdims=False, name=None):
    del shift  # TensorFlow does not use it.
    with tf.name_scope(name or _SCOPE):
        x = tf.convert_to_tensor(x)
        half = x.dtype == tf.float16
        wide = tf.cast(x, tf.float32) if half else x
        mean = tf.reduce_mean(wide, axes, keepdims=True)
        squares = tf.math.squared_difference(wide, mean)
        both = mean, tf.reduce_mean(squares, axes, keepdims=True)
        if not keepdims:
            both = [tf.reduce_sum(t, axes) for t in both]  # of one each
        return tuple(tf.cast(t, x.dtype) for t in both)


def _require_none_stopped(operations, seen):
    for op in operations:
        if op.type == "StopGradient" and _SCOPE in op.name.split("/")[:-1]:
            raise ValueError(
                "The second derivative of a mean and variance is needed, which "
                "TensorFlow gives wrong in a function that was traced before. "
                "Expected a model that calls tf.nn.moments, or Keras's "
                "normalisation, outside of functions of its own. Received: the "
                f"op {op.name!r}. Leave out @tf.function or the saved model "
                "around it, or ask for first derivatives alone: order=1, "
                "curvature='ekfac'."
            )
        for graph in bodies(op):
            if id(graph) not in seen:
                seen.add(id(graph))
                _require_none_stopped(graph.get_operations(), seen)
