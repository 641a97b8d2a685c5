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

from keras_pergrad.keras_internals.models.layers import optional

GRAIN_CLASSES = ("MapDataset", "IterDataset", "DataLoader")


def dataset_components(dataset):
    """Return the parts of a `tf.data.Dataset`.

    These are its input datasets, the graphs of the functions that it calls,
    and the Python function behind them, or None.
    """
    effect = "pipeline reports name no function that a stage calls"
    graphs = [traced.function.graph for traced in dataset._functions()]
    function = optional(dataset, "_map_func", _example_map, effect=effect)
    if function is not None:
        wrapper = function
        function = optional(wrapper, "_func", lambda: wrapper, effect=effect)
    return dataset._inputs(), graphs, function


def buffer_size(dataset):
    """Return the size of a dataset's buffer, or None."""
    effect = "pipeline reports do not know the sizes of buffers"
    return _as_int(
        optional(dataset, "_buffer_size", _example_shuffle, effect=effect)
    )


def batch_size(dataset):
    """Return the size of a dataset's batches; None: it makes none."""
    effect = "pipeline reports do not know the sizes of batches"
    return _as_int(
        optional(dataset, "_batch_size", _example_batch, effect=effect)
    )


def inner_reader(dataset):
    """Return a reader's inner dataset and that of its files, or two None."""
    effect = "pipeline reports do not know whether files are read in turn"
    reader = optional(dataset, "_impl", _example_reader, effect=effect)
    if reader is None:
        return None, None
    return reader, optional(
        reader, "_input_dataset", _example_batch, effect=effect
    )


def _as_int(value):
    if isinstance(value, tf.Tensor):
        value = tf.get_static_value(value)
    return None if value is None else int(value)


def _example_map():
    return tf.data.Dataset.range(1).map(tf.identity)


def _example_shuffle():
    return tf.data.Dataset.range(1).shuffle(1)


def _example_batch():
    return tf.data.Dataset.range(1).batch(1)


def _example_reader():
    return tf.data.TFRecordDataset([])


#: What TensorFlow describes a running pipeline by.
ModelProto = model_pb2.ModelProto


class StandIn(tf.data.Iterator):
    """An iterator in the place of another; one spec serves many calls."""

    # The spec is given, not made from the iterator: one object, whose hash is
    # known, serves every call.

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

    # These delegate to the iterator's own spec, not to a nested one: each
    # level of specs slows every call.
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

    effect = "reports take Grain's default for the number of reading threads"
    for stage in _upstream_stages(data):
        options = optional(
            stage, "_read_options", _example_grain_iter, effect=effect
        )
        if options is not None:
            return _plain_setting(options.num_threads)
    # A user's own IterDataset reads in the thread that asks.
    has_maps = any(
        is_grain(stage, "MapDataset") for stage in _upstream_stages(data)
    )
    return _plain_setting(grain.ReadOptions().num_threads) if has_maps else 0


def worker_processes(data):
    """Return Grain's worker processes; 0: the training process loads."""
    process_counts = map(_worker_count, _upstream_stages(data))
    return next((count for count in process_counts if count is not None), 0)


def _upstream_stages(data):
    """List a dataset and all stages before it, the last one first."""
    effect = "of a Grain pipeline reports know the last stage alone"
    stages = [data]
    for stage in stages:  # the list grows meanwhile
        stages += optional(
            stage, "_parents", _example_grain_map, effect=effect, default=()
        )
    return stages


def _plain_setting(number):
    """Return as a plain number a setting that Grain may tune by itself."""
    return int(getattr(number, "value", number))


def _worker_count(stage):
    """Return the processes of a loader or stage; None: none of its own."""
    effect = "reports do not know the worker processes of Grain"
    if is_grain(stage, "DataLoader"):
        options = optional(
            stage, "_multiprocessing_options", _example_loader, effect=effect
        )
    else:  # an earlier Grain has it in a stage
        options = getattr(stage, "_multiprocessing_options", None)
    if options is not None:
        return int(options.num_workers)
    name = type(stage).__name__
    if "Interleave" in name or "ProcessPrefetch" in name:
        return len(
            optional(stage, "_datasets", _example_interleave, effect=effect)
            or ()
        )
    return None


def _example_grain_map():
    import grain

    return grain.MapDataset.range(1)


def _example_grain_iter():
    return _example_grain_map().to_iter_dataset()


def _example_interleave():
    import grain

    numbers = [_example_grain_iter()]
    return grain.experimental.InterleaveIterDataset(numbers, cycle_length=1)


def _example_loader():
    import grain

    source: Any = range(1)
    sampler = grain.samplers.SequentialSampler(len(source))
    return grain.DataLoader(data_source=source, sampler=sampler)
