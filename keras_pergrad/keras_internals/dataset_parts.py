"""The arguments that a `tf.data.Dataset` was made with.

Private names in use: `Dataset._inputs`, `_functions`, `_map_func`,
`StructuredFunctionWrapper._func`, `_deterministic`, `_buffer_size`,
`_batch_size`; of readers `_impl` and its `_input_dataset`;
`tensorflow.core.framework.model_pb2.ModelProto`.
"""

import tensorflow as tf
from tensorflow.core.framework import model_pb2


def inputs_of(dataset):
    """List the datasets that a dataset is made from."""
    return dataset._inputs()


def graphs_of(dataset):
    """List the graphs of the functions that a dataset calls."""
    return [wrapped.function.graph for wrapped in dataset._functions()]


def mapped_function(dataset):
    """Return the Python function that a dataset calls, or None."""
    return getattr(getattr(dataset, "_map_func", None), "_func", None)


def is_ordered(dataset):
    """Whether its elements come in a fixed order."""
    return getattr(dataset, "_deterministic", "default") != "false"


def buffer_size(dataset):
    """Return the size of its buffer; None: it has none, or not known."""
    return _number(getattr(dataset, "_buffer_size", None))


def batch_size(dataset):
    """Return the number of elements in a batch; None: no batches."""
    return _number(getattr(dataset, "_batch_size", None))


def reader_inside(dataset):
    """Return (the dataset that reads, that of its files); None: no reader."""
    reader = getattr(dataset, "_impl", None)
    return reader, getattr(reader, "_input_dataset", None)


def reader_buffer(dataset):
    """Return a file reader's buffer in bytes; None: TensorFlow's default."""
    if getattr(dataset, "_buffer_size", None) is not None:
        return buffer_size(dataset)
    sizes = [
        size
        for size in vars(dataset).values()
        if isinstance(size, int) and not isinstance(size, bool)
    ]
    return sizes[0] if sizes else None


def running_model(text):
    """Return the `ModelProto` that a running pipeline describes itself by."""
    return model_pb2.ModelProto.FromString(text)


def _number(value):
    if isinstance(value, tf.Tensor):
        value = tf.get_static_value(value)
    return None if value is None else int(value)
