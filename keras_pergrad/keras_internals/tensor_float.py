"""TensorFloat-32, in which a GPU multiplies float32 by default.

Each operand of a matrix product or convolution keeps ten bits behind the first;
sums are float32. Half precision is not concerned: its numbers have no more
bits, and what is squared or weighted is widened before.
"""

import contextlib
import contextvars

import tensorflow as tf

#: The largest relative change of an operand, which is rounded or cut off.
UNIT = 2.0**-10
#: The first NVIDIA cards that have it.
_FIRST = (8, 0)

_allowed = contextvars.ContextVar("norms may be rounded up", default=True)
_rounding_up = contextvars.ContextVar("norms rounded up", default=False)


def may_act():
    """Whether products of float32 may lose digits on a GPU that is visible."""
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return False
    return any(map(_has_it, tf.config.get_visible_devices("GPU")))


def _has_it(physical):
    details = tf.config.experimental.get_device_details(physical)
    known = details.get("compute_capability")
    if known is None:
        return tf.test.is_built_with_rocm()
    return tuple(known) >= _FIRST


@contextlib.contextmanager
def switched_off(condition=True):
    """Let float32 products have all digits while it is open."""
    if not (condition and may_act()):
        yield
        return
    switch = tf.config.experimental.enable_tensor_float_32_execution
    switch(False)
    try:
        yield
    finally:
        switch(True)


@contextlib.contextmanager
def norms_rounded_up(condition=True):
    """Have factors round their norms up while it is open, where it may act."""
    token = _rounding_up.set(bool(condition) and may_act())
    try:
        yield
    finally:
        _rounding_up.reset(token)


@contextlib.contextmanager
def norms_as_computed():
    """Have no norms rounded up while it is open, for comparisons."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def rounds_up(dtype):
    """Whether norms of this type are rounded up now."""
    return _allowed.get() and _rounding_up.get() and dtype == tf.float32
