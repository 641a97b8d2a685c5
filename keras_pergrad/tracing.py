"""Traces, also where the user has functions run eagerly."""

import contextlib

import tensorflow as tf


@contextlib.contextmanager
def traced_functions():
    """Let `tf.function`s that are called inside be traced.

    `tf.config.run_functions_eagerly(True)` would keep them from it; the
    setting is put back at the end.
    """
    eagerly = tf.config.functions_run_eagerly()
    if not eagerly:
        yield
        return
    tf.config.run_functions_eagerly(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(True)
