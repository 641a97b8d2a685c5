"""The graphs of functions: what they capture, and whom they call.

Private names in use: `Graph._get_function`, `FuncGraph.captures`,
`FuncGraph.outer_graph`.
"""


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
