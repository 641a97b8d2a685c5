"""The arguments that a `tf.data.Dataset` was made with.

Private names in use: `Dataset._inputs`, `_functions`, `_map_func`,
`StructuredFunctionWrapper._func`, `_deterministic`, `_buffer_size`,
`_batch_size`; of readers `_impl` and its `_input_dataset`.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.optional_names import optional


def inputs_of(dataset):
    """List the datasets that a dataset is made from."""
    return dataset._inputs()


def graphs_of(dataset):
    """List the graphs of the functions that a dataset calls."""
    return [wrapped.function.graph for wrapped in dataset._functions()]


def mapped_function(dataset):
    """Return the Python function that a dataset calls, or None."""
    lost = "pipeline reports name no function that a stage calls"
    wrapper = optional(dataset, "_map_func", _mapped, lost)
    if wrapper is None:
        return None
    return optional(wrapper, "_func", lambda: wrapper, lost)


def is_ordered(dataset):
    """Whether its elements come in a fixed order."""
    lost = "pipeline reports take every stage for one that keeps the order"
    order = optional(dataset, "_deterministic", _mapped, lost, "default")
    return order != "false"


def buffer_size(dataset):
    """Return the size of its buffer; None: it has none, or not known."""
    lost = "pipeline reports do not know the sizes of buffers"
    return _number(optional(dataset, "_buffer_size", _shuffled, lost))


def batch_size(dataset):
    """Return the number of elements in a batch; None: no batches."""
    lost = "pipeline reports do not know the sizes of batches"
    return _number(optional(dataset, "_batch_size", _batched, lost))


def reader_inside(dataset):
    """Return (the dataset that reads, that of its files); None: no reader."""
    lost = "pipeline reports do not know whether files are read in turn"
    reader = optional(dataset, "_impl", _reader, lost)
    if reader is None:
        return None, None
    return reader, optional(reader, "_input_dataset", _batched, lost)


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


def _number(value):
    if isinstance(value, tf.Tensor):
        value = tf.get_static_value(value)
    return None if value is None else int(value)


def _mapped():
    return tf.data.Dataset.range(1).map(tf.identity, 2, deterministic=False)


def _shuffled():
    return tf.data.Dataset.range(1).shuffle(1)


def _batched():
    return tf.data.Dataset.range(1).batch(1)


def _reader():
    return tf.data.TFRecordDataset([])
