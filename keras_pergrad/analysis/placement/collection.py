"""The graphs that TensorFlow hands to each device's executor.

They show the true placement: they exist after the placer, grappler and the
partitioner. TensorFlow exports them only for functions that are instantiated
(placed, optimised, cut into partitions) while collection is on.
"""

import inspect

from keras_pergrad.keras_internals.tf_context import placed_graphs

#: A context manager that yields a list for the `RunMetadata` of the block.
collect = placed_graphs


def was_traced(function):
    """Whether a Keras train function, a closure in closures, has run before."""
    seen, pending = set(), [(function, 0)]
    while pending:
        item, depth = pending.pop()
        if id(item) in seen or depth > 4:
            continue
        seen.add(id(item))
        count = getattr(item, "experimental_get_tracing_count", None)
        if count is not None:
            if count():
                return True
            continue
        item = getattr(item, "__wrapped__", item)
        item = getattr(item, "__func__", item)
        if inspect.isfunction(item):
            values = inspect.getclosurevars(item).nonlocals.values()
            pending += [(v, depth + 1) for v in values if callable(v)]
    return False


def step_partitions(metadata):
    """Return the partition graphs of the training step, one a device."""

    # Other functions (of the data pipeline, of metrics) may have been placed
    # meanwhile: the step is the one that fetches a batch, else the largest.
    def rank(parts):
        ops = [node.op for part in parts for node in part.node]
        return any(op.startswith("IteratorGetNext") for op in ops), len(ops)

    graphs = [
        [part for part in graph.partition_graphs if part.node]
        for graph in metadata.function_graphs
    ]
    return max(graphs, key=rank, default=[])
