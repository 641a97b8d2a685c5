"""Changed copies of a dataset, to measure what a change would bring."""

import tensorflow as tf

IGNORE_STATE = 1


def with_parallel_maps(dataset):
    """Return the pipeline with every map made parallel, or None."""
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=IGNORE_STATE,
        ).numpy()
    except tf.errors.OpError:  # it holds a table, or more than 2 GB
        return None
    graph = tf.compat.v1.GraphDef.FromString(text)
    maps = [node for node in graph.node if node.op == "MapDataset"]
    if not maps:
        return None
    calls = graph.node.add(name="parallel_calls", op="Const")
    calls.attr["dtype"].type = tf.int64.as_datatype_enum
    calls.attr["value"].tensor.CopyFrom(
        tf.make_tensor_proto(tf.data.AUTOTUNE, tf.int64)
    )
    for node in maps:
        node.op = "ParallelMapDatasetV2"
        node.input.append(calls.name)
        node.attr["deterministic"].s = b"default"
        node.attr.pop("force_synchronous", None)
    try:
        variant = tf.raw_ops.DatasetFromGraph(
            graph_def=graph.SerializeToString()
        )
    except tf.errors.OpError:
        return None
    copy = tf.data.experimental.from_variant(variant, dataset.element_spec)
    # Python functions in the graph live as long as the original does.
    copy.original = dataset
    return copy
