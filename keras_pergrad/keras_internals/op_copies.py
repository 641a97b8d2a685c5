"""Ops that only compute, put once more into a graph inside their own.

Private names in use: `FuncGraph._add_function_recursive`, the attribute
`_noinline` of functions.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.function_graphs import called_function
from keras_pergrad.keras_internals.graph_nodes import (
    Definitions,
    only_computes,
)

#: Stateful ops that only read. Calls do what their functions do.
_PURE = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd"}


def copy_of(op, inputs):
    """Put an op into the current graph, with other inputs.

    Returns:
        Its outputs; None: it draws or assigns, which must not happen twice.
    """
    if not _is_pure(op.node_def, Definitions(op.graph), set()):
        return None
    graph = tf.compat.v1.get_default_graph()
    for name in _functions(op.node_def):
        function = called_function(op.graph, name)
        if function is not None:
            graph._add_function_recursive(function)
    made = graph.create_op(
        op.type,
        [graph.capture(t) for t in inputs],
        [t.dtype for t in op.outputs],
        attrs=dict(op.node_def.attr.items()),
    )
    for tensor, output in zip(made.outputs, op.outputs):
        tensor.set_shape(output.shape)
    return list(made.outputs)


def kept_apart(function, *specs):
    """Trace a function that TensorFlow optimizes once, not at each call."""
    traced = tf.function(
        function,
        autograph=False,
        experimental_attributes={"_noinline": True},
    )
    return traced.get_concrete_function(*specs)


def _functions(node):
    """Return the names of the functions that a node calls."""
    functions = [
        function
        for value in node.attr.values()
        for function in (value.func, *value.list.func)
    ]
    return [function.name for function in functions if function.name]


def _is_pure(node, definitions, seen):
    """Whether a node, with what it calls, may run twice."""
    called = _functions(node)
    if not called and node.op not in _PURE:
        return only_computes(node.op)
    for name in set(called) - seen:
        seen.add(name)
        function = definitions.definition(name)
        if function is None or not all(
            _is_pure(inner, definitions, seen) for inner in function.node_def
        ):
            return False
    return True
