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
from keras_pergrad.keras_internals.function_graphs import (
    graph_around,
    is_function,
)
from keras_pergrad.keras_internals.iterator_types import (
    StandIn,
    StandInSpec,
)

STEPS = ("If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall")


class TraceCounter:
    """Counts the fetches traced so far, to tell a tracing call."""

    count = 0


class TimedIterator(StandIn):
    """Stands in for an iterator and logs its fetches; `spec`: `timed_spec`."""

    def get_next(self):
        return self._fetch(self.iterator.get_next, lambda batch: True)

    def get_next_as_optional(self):
        return self._fetch(
            self.iterator.get_next_as_optional,
            lambda optional: optional.has_value(),
        )

    def _fetch(self, fetch, had_batch):
        log = log_of_key(self.spec.log_key)
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
        copied = time_on_device(batch, self.spec.copied_to)
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
        body = graph_around(graph)
        if not is_function(body):
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


class TimedIteratorSpec(StandInSpec):
    """Type of a `TimedIterator`: the iterator's own type, and the log's key.

    It also holds the accelerator to which batches are copied, or None. The log
    is part of the type and captured by the trace: as an argument it would cost
    60 us a call (measured), most of it in comparing types.
    """

    def __init__(self, iterator_spec, log_key, copied_to):
        super().__init__(iterator_spec, log_key, copied_to)
        self.log_key = log_key
        self.copied_to = copied_to

    @property
    def value_type(self):
        return TimedIterator
