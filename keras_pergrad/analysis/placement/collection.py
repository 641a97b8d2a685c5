"""The graphs that TensorFlow hands to each device's executor.

They show the true placement: they exist after the placer, grappler and the
partitioner. TensorFlow exports them only for functions that are instantiated
(placed, optimised, cut into partitions) while collection is on.

Private names in use, each covered by
`tests/analysis/placement/test_collection.py`:
`tensorflow.python.eager.context`: `context()`, `FunctionCallOptions`,
`function_call_options`, `enable_graph_collection`,
`disable_graph_collection`, `export_run_metadata`.
"""

import contextlib
import inspect
import time

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as eager_context

_SECONDS_MS = 300_000


@contextlib.contextmanager
def collect(again):
    """Yield a list that gets the `RunMetadata` when the block ends.

    Collection is one flag for the whole process, and exporting drains what
    was collected: do not nest. With `again`, functions called inside are
    placed again, without being traced again.
    """
    context = eager_context.context()
    context.ensure_initialized()
    options = context.function_call_options
    collected = []
    if again:
        config = config_pb2.ConfigProto.FromString(
            options.config_proto_serialized
        )
        rewrite = config.graph_options.rewrite_options
        rewrite.meta_optimizer_timeout_ms = (
            _SECONDS_MS + time.monotonic_ns() % 1_000_003
        )
        context.function_call_options = eager_context.FunctionCallOptions(
            executor_type=options.executor_type, config_proto=config
        )
    context.enable_graph_collection()
    context.export_run_metadata()  # what others left there
    try:
        yield collected
    finally:
        collected.append(context.export_run_metadata())
        context.disable_graph_collection()
        context.function_call_options = options


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
