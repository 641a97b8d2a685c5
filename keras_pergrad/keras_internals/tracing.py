"""Traces, also where the user has functions run eagerly."""

import contextlib

import tensorflow as tf


def traced_functions():
    """Let `tf.function`s that are called inside be traced.

    `tf.config.run_functions_eagerly(True)` would keep them from it; the
    setting is put back at the end.
    """
    return _functions_run_eagerly(False)


def functions_in_line():
    """Let the ops of `tf.function`s called inside be those of the caller."""
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
