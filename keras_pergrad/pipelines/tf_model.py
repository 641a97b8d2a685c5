"""tf.data's own account of where its time goes, read from a live iterator."""

import tensorflow as tf
from tensorflow.core.framework import model_pb2

ASYNC = "parallelism"


def running_stages(iterator):
    """(name, seconds of work) of the stages as they really run.

    TensorFlow rewrites pipelines (it fuses stages and adds a prefetch), so
    these can differ from what was written.

    Returns:
        List from the last stage to the source; None when TensorFlow keeps no
        account for this iterator (distributed, or autotuning is off).
    """
    if not isinstance(iterator, tf.data.Iterator):
        return None
    resource = tf.nest.flatten(iterator, expand_composites=True)[0]
    try:
        text = tf.raw_ops.IteratorGetModelProto(iterator=resource).numpy()
    except (tf.errors.OpError, AttributeError):
        return None
    model = model_pb2.ModelProto.FromString(text)
    found = []
    key = model.output
    while key is not None and key in model.nodes:
        node = model.nodes[key]
        parallel = 1.0
        for parameter in node.parameters:
            if parameter.name == ASYNC:
                parallel = max(parameter.value, 1.0)
        if node.name != "Root":
            seconds = node.processing_time * 1e-9 / parallel
            found.append((node.name, seconds))
        key = node.inputs[0] if node.inputs else None
    return found or None


def slowest_stage(running):
    """(name, share of the work) of the slowest of `running_stages`, or None.

    A prefetch does no work: where it seems to, TensorFlow has booked a stage
    that it keeps no account of (a file reader) there, and names no culprit.
    """
    total = sum(seconds for _, seconds in running or ())
    if not total:
        return None
    name, seconds = max(running, key=lambda pair: pair[1])
    return None if name.startswith("Prefetch") else (name, seconds / total)
