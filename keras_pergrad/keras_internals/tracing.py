"""Settings of TensorFlow for functions that are traced or run aside.

Private names in use: `tensorflow.python.eager.context`
(`Context.function_call_options`, `FunctionCallOptions`); without them graphs
are optimised.
"""

import contextlib

import tensorflow as tf

try:
    from tensorflow.python.eager import context
except ImportError:
    context = None


def traced_functions():
    """Let `tf.function`s that are called inside be traced.

    `tf.config.run_functions_eagerly(True)` would prevent this. The setting is
    restored at the end.
    """
    return _functions_run_eagerly(False)


def functions_in_line():
    """Put the ops of `tf.function`s called inside into the caller's graph."""
    return _functions_run_eagerly(True)


@contextlib.contextmanager
def _functions_run_eagerly(wanted):
    before = tf.config.functions_run_eagerly()
    if before == wanted:
        yield
        return
    tf.config.run_functions_eagerly(wanted)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def graphs_not_optimized():
    """Let this thread run functions inside as they were traced.

    To optimise a graph takes as long as a few runs of it.
    """
    if context is None:
        yield
        return
    here = context.context()
    before = here.function_call_options
    config = tf.compat.v1.ConfigProto()
    config.ParseFromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    here.function_call_options = context.FunctionCallOptions(
        executor_type=before.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        here.function_call_options = before
