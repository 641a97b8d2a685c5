"""Settings of TensorFlow for functions that are traced or run aside."""

import contextlib
import threading

import tensorflow as tf

_OFF = "disable_meta_optimizer"
_setting = threading.RLock()


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
    """Run functions whose first call is inside as they were traced.

    To optimise a graph takes longer than it saves in a few runs. The setting
    is that of the process and is restored at the end.
    """
    with _setting:
        before = tf.config.optimizer.get_experimental_options()
        tf.config.optimizer.set_experimental_options({_OFF: True})
        try:
            yield
        finally:
            tf.config.optimizer.set_experimental_options(
                {_OFF: before.get(_OFF, False)}
            )
