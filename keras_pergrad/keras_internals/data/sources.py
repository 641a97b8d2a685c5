"""Parts of datasets, loaders and iterators that have no public name.

Grain is an optional dependency: nothing here imports it until the data is
Grain's own.

Private names in use, of TensorFlow: `Dataset._inputs`, `_functions`,
`_map_func`, `StructuredFunctionWrapper._func`, `_buffer_size`, `_batch_size`;
of readers `_impl` and its `_input_dataset`;
`tensorflow.core.framework.model_pb2.ModelProto`;
`CompositeTensor._type_spec`, `TypeSpec._serialize`, `_component_specs`,
`_to_components`, `_from_components`. Of Grain: `MapDataset._parents`,
`IterDataset._read_options`, `_datasets`, `_multiprocessing_options`.
"""

import sys
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import model_pb2

from keras_pergrad.keras_internals.models.parts import optional

GRAIN_CLASSES = ("MapDataset", "IterDataset", "DataLoader")


def parts_of(dataset):
    """Return what a `tf.data.Dataset` is made from and calls.

    The datasets that it takes, the graphs of the functions that it calls, and
    the Python function of these, or None.
    """
    lost = "pipeline reports name no function that a stage calls"
    graphs = [wrapped.function.graph for wrapped in dataset._functions()]
    function = optional(dataset, "_map_func", _mapped, lost)
    if function is not None:
        wrapper = function
        function = optional(wrapper, "_func", lambda: wrapper, lost)
    return dataset._inputs(), graphs, function


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


def _number(value):
    if isinstance(value, tf.Tensor):
        value = tf.get_static_value(value)
    return None if value is None else int(value)


def _mapped():
    return tf.data.Dataset.range(1).map(tf.identity)


def _shuffled():
    return tf.data.Dataset.range(1).shuffle(1)


def _batched():
    return tf.data.Dataset.range(1).batch(1)


def _reader():
    return tf.data.TFRecordDataset([])


#: What TensorFlow describes a running pipeline by.
ModelProto = model_pb2.ModelProto


class StandIn(tf.data.Iterator):
    """An iterator in the place of another; one spec serves many calls."""

    def __init__(self, iterator, spec):
        self.iterator, self.spec = iterator, spec

    @property
    def element_spec(self):
        return self.iterator.element_spec

    @property
    def _type_spec(self):
        return self.spec

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None


class StandInSpec(tf.TypeSpec):
    """The type of a `StandIn`: the iterator's own, and what else is given."""

    stand_in: type = StandIn  # the class of the values

    def __init__(self, iterator_spec, *settings):
        self._parts = (iterator_spec, *settings)
        self._hash = hash(self._parts)

    def __hash__(self):
        return self._hash

    def __eq__(self, other):
        return self is other or super().__eq__(other)

    def is_subtype_of(self, other):
        return self is other or super().is_subtype_of(other)

    @property
    def value_type(self):
        return self.stand_in

    def _serialize(self):
        return self._parts

    @property
    def _component_specs(self):
        return self._parts[0]._component_specs

    # The iterator's own components: each level of types slows every call.
    def _to_components(self, value):
        return self._parts[0]._to_components(value.iterator)

    def _from_components(self, components):
        iterator = self._parts[0]._from_components(components)
        return self.value_type(iterator, self)


def is_grain(data, *names):
    """Whether this is of a class of Grain; of those `names`, if given."""
    grain = sys.modules.get("grain")
    classes = [getattr(grain, name, None) for name in names or GRAIN_CLASSES]
    return isinstance(data, tuple(filter(None, classes)))


def read_threads(data):
    """Return how many threads of Grain read samples; its default is 16."""
    import grain

    lost = "reports take Grain's default for the number of reading threads"
    for node in _nodes(data):
        options = optional(node, "_read_options", _read_numbers, lost)
        if options is not None:
            return _setting(options.num_threads)
    # A user's own IterDataset reads in the thread that asks.
    maps = any(is_grain(node, "MapDataset") for node in _nodes(data))
    return _setting(grain.ReadOptions().num_threads) if maps else 0


def worker_processes(data):
    """Return Grain's worker processes; 0: the training process loads."""
    counts = map(_worker_count, _nodes(data))
    return next((count for count in counts if count is not None), 0)


def _nodes(data):
    """Return a dataset and all that it is made of, the last stage first."""
    lost = "of a Grain pipeline reports know the last stage alone"
    nodes = [data]
    for node in nodes:  # it grows
        nodes += optional(node, "_parents", _numbers, lost, ())
    return nodes


def _setting(number):
    """Return a setting that Grain may choose by itself as a plain number."""
    return int(getattr(number, "value", number))


def _worker_count(node):
    """Return the processes of a loader or stage; None: none of its own."""
    lost = "reports do not know the worker processes of Grain"
    if is_grain(node, "DataLoader"):
        options = optional(node, "_multiprocessing_options", _loader, lost)
    else:  # an earlier Grain has it in a stage
        options = getattr(node, "_multiprocessing_options", None)
    if options is not None:
        return int(options.num_workers)
    name = type(node).__name__
    if "Interleave" in name or "ProcessPrefetch" in name:
        return len(optional(node, "_datasets", _interleaved, lost) or ())
    return None


def _numbers():
    import grain

    return grain.MapDataset.range(1)


def _read_numbers():
    return _numbers().to_iter_dataset()


def _interleaved():
    import grain

    numbers = [_read_numbers()]
    return grain.experimental.InterleaveIterDataset(numbers, cycle_length=1)


def _loader():
    import grain

    one: Any = range(1)
    sampler = grain.samplers.SequentialSampler(len(one))
    return grain.DataLoader(data_source=one, sampler=sampler)
