"""The graphs of functions: what they capture, and whom they call.

Private names in use: `Graph._get_function`, `FuncGraph.captures`,
`FuncGraph.outer_graph`.
"""

import tensorflow as tf


def captures_of(graph):
    """List (tensor outside, tensor inside) of a function's graph."""
    return graph.captures


def graph_around(graph):
    """Return the graph in which a function was traced; None: no function."""
    return graph.outer_graph if is_function(graph) else None


def is_function(graph):
    """Whether a graph is that of a function."""
    return hasattr(graph, "outer_graph")


def called_function(graph, name):
    """Return the function that ops of a graph call by a name, or None."""
    return graph._get_function(name)


def captured_from(graph):
    """Return id of a captured tensor → the tensor where it comes from."""
    if not is_function(graph):
        return {}
    around = captured_from(graph_around(graph))
    inside = {
        id(inner): around.get(id(outer), outer)
        for outer, inner in captures_of(graph)
    }
    return {**around, **inside}


def resource_of(handle):
    """Return a key of what is behind a handle, the same for all its handles."""
    if tf.is_symbolic_tensor(handle):
        return id(handle)
    # Its text has the name and the container, by which TensorFlow finds it.
    return repr(handle).partition(", type=")[0]
