"""Tracing, even if the user lets functions run eagerly."""

import contextlib

import tensorflow as tf


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
