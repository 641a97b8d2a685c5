"""An iterator that notes when a batch was asked for and when it came.

Keras fetches the batch inside the compiled train function, so only ops in
that function can see the wait. `TimedIterator` is passed in the place of the
real iterator: when the train function is traced, each of its fetches gets a
time stamp before and after. Nothing is patched; the trace is kept beside the
ordinary one and serves every later `fit` that is timed into the same log.

With `steps_per_execution` above one, Keras's loop runs the fetch of the next
batch *beside* the current step. Only what goes beyond the end of that step
is a wait; so the end of the step is noted as well.
"""

import time

import tensorflow as tf

from keras_pergrad.analysis.pipelines.device_copy import (
    copied_to,
    time_on_device,
)
from keras_pergrad.analysis.pipelines.wait_log import log_of_key

STEPS = ("If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall")


class TraceCounter:
    """Counts the fetches traced so far, to tell a tracing call."""

    count = 0


class TimedIterator(tf.data.Iterator):
    """Stands in for an iterator and logs its fetches; `spec`: `timed_spec`."""

    def __init__(self, iterator, spec):
        self._iterator = iterator
        self._spec = spec

    @property
    def element_spec(self):
        return self._iterator.element_spec

    @property
    def _type_spec(self):
        return self._spec

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None

    def get_next(self):
        return self._fetch(self._iterator.get_next, lambda batch: True)

    def get_next_as_optional(self):
        return self._fetch(
            self._iterator.get_next_as_optional,
            lambda optional: optional.has_value(),
        )

    def _fetch(self, fetch, had_batch):
        log = log_of_key(self._spec.log_key)
        if tf.executing_eagerly():
            asked = time.time()
            batch = fetch()
            arrived = time.time()
            log.add(asked, arrived, bool(had_batch(batch)))
            return batch
        TraceCounter.count += 1
        row = _row_with_step_end(log)
        with tf.device("CPU:0"):
            asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            batch = fetch()
        parts = tf.nest.flatten(batch, expand_composites=True)
        with tf.control_dependencies(parts), tf.device("CPU:0"):
            arrived = tf.timestamp()
        log.write_fetch(row, asked, arrived, had_batch(batch))
        # The step must not overtake the time stamp on a busy machine.
        with tf.control_dependencies([arrived]):
            batch = tf.nest.map_structure(
                _pass_on, batch, expand_composites=True
            )
        copied = time_on_device(batch, self._spec.copied_to)
        if copied is not None:
            log.write_copied(row, copied)
        return batch


def _pass_on(part):
    """Return the same tensor on the same device, later."""
    with part.graph.colocate_with(part.op):
        return tf.identity(part)


def _row_with_step_end(log):
    """Take a row; note the end of a step that runs beside the fetch."""
    # In Keras's loop the fetch is a branch of a condition in the loop's body,
    # and the step is an earlier op of that body.
    graph = tf.compat.v1.get_default_graph()
    while True:
        body = getattr(graph, "outer_graph", None)
        if not hasattr(body, "outer_graph"):
            return log.next_row()
        steps = [op for op in body.get_operations() if op.type in STEPS]
        if steps:
            break
        graph = body
    with body.as_default():
        row = log.next_row()
        with tf.control_dependencies(steps), tf.device("CPU:0"):
            ended = tf.timestamp()
        log.write_step_end(row, ended)
    return row


def timed_spec(iterator, log):
    """Return the type of `iterator` when it is timed into `log`."""
    return TimedIteratorSpec(
        tf.type_spec_from_value(iterator), log.key, copied_to(iterator)
    )


class TimedIteratorSpec(tf.TypeSpec):
    """Type of a `TimedIterator`: the iterator's own type, and the log's key.

    It also holds the accelerator to which batches are copied, or None. The log
    is part of the type and captured by the trace: as an argument it would cost
    60 us a call (measured), most of it in comparing types.
    """

    def __init__(self, iterator_spec, log_key, copied_to):
        self._iterator_spec = iterator_spec
        self.log_key = log_key
        self.copied_to = copied_to
        self._hash = hash((iterator_spec, log_key, copied_to))

    def __hash__(self):
        return self._hash

    def __eq__(self, other):
        return self is other or super().__eq__(other)

    def is_subtype_of(self, other):
        return self is other or super().is_subtype_of(other)

    @property
    def value_type(self):
        return TimedIterator

    def _serialize(self):
        return (self._iterator_spec, self.log_key, self.copied_to)

    @property
    def _component_specs(self):
        return self._iterator_spec._component_specs

    # The iterator's own components: each level of types slows every call.
    def _to_components(self, value):
        return self._iterator_spec._to_components(value._iterator)

    def _from_components(self, components):
        iterator = self._iterator_spec._from_components(components)
        return TimedIterator(iterator, self)
