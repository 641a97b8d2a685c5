import threading

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from keras_pergrad.keras_internals.tracing import graphs_not_optimized


def _off():
    """Whether functions of this thread run without TensorFlow's optimizer."""
    config = tf.compat.v1.ConfigProto()
    options = context.context().function_call_options
    config.ParseFromString(options.config_proto_serialized)
    return config.graph_options.rewrite_options.disable_meta_optimizer


def test_the_optimizer_of_graphs_is_as_before():
    assert not _off()
    with graphs_not_optimized():
        with graphs_not_optimized():
            assert _off()
        assert _off()
    assert not _off()
    with pytest.raises(ZeroDivisionError), graphs_not_optimized():
        raise ZeroDivisionError
    assert not _off()


def test_other_threads_keep_the_optimizer():
    """Also one that begins, and looks at its settings, meanwhile."""
    found = []
    thread = threading.Thread(target=lambda: found.append(_off()))
    with graphs_not_optimized():
        thread.start()
        thread.join()
    assert found == [False]


def test_settings_of_the_user_are_kept():
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        with graphs_not_optimized():
            assert _off()
        options = context.context().function_call_options
        config = tf.compat.v1.ConfigProto()
        config.ParseFromString(options.config_proto_serialized)
        rewrites = config.graph_options.rewrite_options
        assert rewrites.remapping == rewrites.OFF
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": True})


def test_functions_compute_the_same_without_it():
    double = tf.function(lambda x: 2.0 * x + 0.0)
    with graphs_not_optimized():
        assert double(tf.constant(3.0)) == 6.0
    assert double(tf.constant(3.0)) == 6.0
