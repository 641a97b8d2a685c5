"""The log's resources go when it does."""

import pytest
import tensorflow as tf

from keras_pergrad.stalls.wait_log import WaitLog


def test_a_log_can_be_collected_while_a_graph_is_built():
    log = WaitLog()
    counter = log.counter
    graph = tf.Graph()
    with graph.as_default():
        del log  # runs its finalizer, here and now
    assert not graph.get_operations()
    with pytest.raises(tf.errors.FailedPreconditionError, match="not exist"):
        tf.raw_ops.ReadVariableOp(resource=counter, dtype=tf.int64)
