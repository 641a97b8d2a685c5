"""Variables that a traced function assigns, and putting them back.

Private names in use: `FuncGraph.captures`, `FuncGraph.variables`.
"""

import contextlib

import tensorflow as tf

_READS = {
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
}


@contextlib.contextmanager
def assigned_put_back(function):
    """Give what a concrete function assigns its values back at the end."""
    saved = [(v, tf.identity(v)) for v in assigned(function.graph)]
    try:
        yield
    finally:
        for variable, value in saved:
            variable.assign(value)


def assigned(graph):
    """Return the `tf.Variable`s that a graph may assign.

    Those that it hands on to a function or a loop are among them.
    """
    inside = {id(inner): id(outer) for outer, inner in graph.captures}
    changed = {
        inside.get(id(t))
        for op in graph.get_operations()
        if op.type not in _READS
        for t in op.inputs
        if t.dtype == tf.resource
    }
    return [v for v in graph.variables if id(v.handle) in changed]
