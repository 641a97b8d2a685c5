"""A log, written by a train function while it runs, of when data arrived.

The log is four small resources on the CPU: a counter, one row for each fetch,
and for each fetch two time stamps that it may lack: the end of the step that
ran beside it, and when the batch was on the accelerator. They are separate
since TensorFlow keeps the writes to one resource in order: a fetch would wait
for the step beside it. A row costs a few microseconds; the host reads the log
once in some hundred steps, so neither the steps nor the memory feel it.

Raw resources are used, not `tf.Variable`: inside a `tf.distribute` scope a
variable would become a mirrored one.
"""

import itertools
import weakref

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.devices import eagerly

CAPACITY = 2048  # rows, where a call needs no more
COLUMNS = 3  # asked, arrived, whether there was a batch

_keys = itertools.count()
_logs = weakref.WeakValueDictionary()


def log_of_key(key):
    """Return the `WaitLog` with that `key`."""
    return _logs[key]


class WaitLog:
    """Rows of (asked, arrived, had a batch, end of step, on the device).

    The last two are 0 where no step ran beside the fetch, or no copy to an
    accelerator was timed. Times are `tf.timestamp()`, the clock of
    `time.time()`. Of more than `capacity` rows until `drain` the oldest are
    overwritten.

    Attributes:
        traces: How many fetches have been traced that write into it.
    """

    def __init__(self, capacity=CAPACITY):
        self.capacity = capacity
        self.key = next(_keys)
        _logs[self.key] = self
        self._rows_read = self.traces = 0
        # What no trace writes need not be read.
        self._has_step_ends = self._has_copies = False
        with tf.init_scope(), tf.device("CPU:0"):
            self._no_rows = tf.zeros([capacity, COLUMNS], tf.float64)
            self._no_times = tf.zeros([capacity], tf.float64)
            self.counter = self._resource("counter", tf.constant(0, tf.int64))
            self.fetches = self._resource("fetches", self._no_rows)
            self.step_ends = self._resource("ends", self._no_times)
            self.copies = self._resource("copies", self._no_times)
        self._eager_rows = []
        handles = (self.counter, self.fetches, self.step_ends, self.copies)
        weakref.finalize(self, _destroy, handles).atexit = False

    def _resource(self, part, value):
        resource = tf.raw_ops.VarHandleOp(
            dtype=value.dtype,
            shape=value.shape,
            shared_name=f"wait_log_{self.key}_{part}",
        )
        tf.raw_ops.AssignVariableOp(resource=resource, value=value)
        return resource

    def add(self, requested, arrived, had_batch):
        """Add a fetch that Python made itself (eager mode)."""
        self._eager_rows.append(
            (requested, arrived, float(had_batch), 0.0, 0.0)
        )

    def next_row(self):
        """Take the next row (in a graph)."""
        self.traces += 1
        with tf.device("CPU:0"):
            tf.raw_ops.AssignAddVariableOp(
                resource=self.counter, value=tf.constant(1, tf.int64)
            )
            written = tf.raw_ops.ReadVariableOp(
                resource=self.counter, dtype=tf.int64
            )
            return written % tf.constant(self.capacity, tf.int64)

    def write_fetch(self, row, *, requested, arrived, had_batch):
        """Fill in a row (in a graph)."""
        with tf.device("CPU:0"):
            had_batch = tf.cast(had_batch, tf.float64)
            tf.raw_ops.ResourceScatterUpdate(
                resource=self.fetches,
                indices=row,
                updates=tf.stack([requested, arrived, had_batch]),
            )

    def write_step_end(self, row, time):
        """Fill in when the step beside the fetch ended (in a graph)."""
        self._has_step_ends = True
        _write_time(self.step_ends, row, time)

    def write_copy_end(self, row, time):
        """Fill in when the batch was on the accelerator (in a graph)."""
        self._has_copies = True
        _write_time(self.copies, row, time)

    def drain(self):
        """Return new rows, shape (rows, 5), and how many were overwritten."""
        eager_rows, self._eager_rows = self._eager_rows, []
        with tf.init_scope(), tf.device("CPU:0"):
            written = int(
                tf.raw_ops.ReadVariableOp(resource=self.counter, dtype=tf.int64)
            )
            new_count = min(written - self._rows_read, self.capacity)
            lost = written - self._rows_read - new_count
            rows = np.zeros((new_count, COLUMNS + 2))
            if new_count:
                # `next_row` counts before it reads, so rows begin at 1.
                places = np.arange(written - new_count, written) + 1
                places %= self.capacity
                values = _read_and_clear(self.fetches, self._no_rows)
                rows[:, :COLUMNS] = values[places]
                for column, resource, is_written in (
                    (-2, self.step_ends, self._has_step_ends),
                    (-1, self.copies, self._has_copies),
                ):
                    if is_written:
                        times = _read_and_clear(resource, self._no_times)
                        rows[:, column] = times[places]
        self._rows_read = written
        rows = np.concatenate([rows, np.reshape(eager_rows, (-1, COLUMNS + 2))])
        # No arrival: the pipeline ended or raised inside that fetch, or a
        # loop over steps took no further batch.
        return rows[rows[:, 1] > 0], lost


def _write_time(resource, row, time):
    with tf.device("CPU:0"):
        tf.raw_ops.ResourceScatterUpdate(
            resource=resource, indices=row, updates=time
        )


def _read_and_clear(resource, empty):
    """Return the numbers in `resource`, and clear it."""
    value = tf.raw_ops.ReadVariableOp(resource=resource, dtype=empty.dtype)
    tf.raw_ops.AssignVariableOp(resource=resource, value=empty)
    return value.numpy()


def _destroy(handles):
    # Python may collect the log while some function or graph is being built;
    # `tf.init_scope` would not leave a plain graph.
    with eagerly():
        for handle in handles:
            tf.raw_ops.DestroyResourceOp(
                resource=handle, ignore_lookup_error=True
            )
