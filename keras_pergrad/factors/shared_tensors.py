"""Small tensors that the factors of a graph share.

Each op costs about a tenth of a millisecond to trace, and as much to optimise
and start; a step has a norm and a sum for each variable.
"""

import weakref

import tensorflow as tf

# The names of tensors, since a tensor keeps its graph alive.
_TENSOR_NAMES = weakref.WeakKeyDictionary()


def integers(*values):
    """Return integers, an axis or a shape, as one constant of the graph."""
    not_shared = tf.executing_eagerly() or not values
    if not_shared or not all(type(value) is int for value in values):
        return list(values)
    return _shared_tensor(values, lambda: tf.constant(values, tf.int32))


def reshape_once(tensor, shape):
    """Return a tensor in a shape of integers, made once in its graph."""
    # A tensor with a value has no graph.
    graph = getattr(tensor, "graph", None)
    if graph is not tf.compat.v1.get_default_graph():
        return tf.reshape(tensor, shape)
    key = tensor.name, *shape
    return _shared_tensor(key, lambda: tf.reshape(tensor, integers(*shape)))


def zero(dtype):
    """Return a scalar zero, as one constant of the graph."""
    if tf.executing_eagerly():
        return tf.zeros([], dtype)
    return _shared_tensor(("zero", dtype), lambda: tf.constant(0, dtype))


def _shared_tensor(key, make):
    """Return `make()`, a tensor, which is made once in a graph."""
    graph = tf.compat.v1.get_default_graph()
    names = _TENSOR_NAMES.setdefault(graph, {})
    if key not in names:
        # The control dependencies of the first use are not those of others.
        with tf.control_dependencies(None):
            names[key] = make().name
    return graph.get_tensor_by_name(names[key])
