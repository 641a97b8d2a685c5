"""Settings of TensorFlow for functions that are traced or run aside."""

import contextlib
import contextvars

import tensorflow as tf

_NOISE = contextvars.ContextVar("noise is added to the step", default=False)
_INSPECTED = contextvars.ContextVar("a step is only looked at", default=False)


@contextlib.contextmanager
def adding_noise(noise):
    """Note whether the steps that are traced inside add noise."""
    token = _NOISE.set(noise)
    try:
        yield
    finally:
        _NOISE.reset(token)


def is_adding_noise():
    """Whether the step that is traced adds noise, which hides one sample."""
    return _NOISE.get()


@contextlib.contextmanager
def inspecting():
    """Let training steps be traced inside that are never applied."""
    token = _INSPECTED.set(True)
    try:
        yield
    finally:
        _INSPECTED.reset(token)


def is_inspecting():
    """Whether `inspecting` is open."""
    return _INSPECTED.get()


def traced_functions():
    """Let `tf.function`s inside be traced, even if they are to run eagerly."""
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


def traced_once(function, *arguments):
    """Return `function(*arguments)`, whose arguments are a graph's inputs."""
    with traced_functions():
        traced = tf.function(function, autograph=False)
        return traced.get_concrete_function(*arguments)(*arguments)
