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
    """Whether a Keras train function has run before.

    Keras hides the `tf.function` in a closure, and other callbacks may have
    wrapped it once more: closures are followed a few steps deep.
    """
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
    """Return the partition graphs of the training step, one a device.

    Other functions (of the data pipeline, of metrics) may have been placed
    meanwhile: the step is the one that fetches a batch, else the largest.
    """
    graphs = [
        [part for part in graph.partition_graphs if part.node]
        for graph in metadata.function_graphs
    ]
    graphs = [parts for parts in graphs if parts]
    if not graphs:
        return []

    def rank(parts):
        ops = {node.op for part in parts for node in part.node}
        fetches = any(op.startswith("IteratorGetNext") for op in ops)
        return fetches, sum(len(part.node) for part in parts)

    return max(graphs, key=rank)
