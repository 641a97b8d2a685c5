"""TensorFlow's settings: tracing, XLA, TensorFloat-32.

Private names in use:
`tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext`,
`tensorflow.compiler.tf2xla.python.xla.dynamic_update_slice`.
"""

import contextlib
import contextvars
import functools
import warnings

import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.devices import compute_capability

_ADDS_NOISE = contextvars.ContextVar(
    "noise is added to the step", default=False
)
_IS_INSPECTING = contextvars.ContextVar(
    "a step is only looked at", default=False
)


@contextlib.contextmanager
def _set_inside(variable, value):
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def adding_noise(adds_noise):
    """Note whether the steps that are traced inside add noise."""
    return _set_inside(_ADDS_NOISE, adds_noise)


def is_adding_noise():
    """Whether the step that is traced adds noise, which hides one sample."""
    return _ADDS_NOISE.get()


def inspecting():
    """Trace training steps, inside, that are never applied."""
    return _set_inside(_IS_INSPECTING, True)


def is_inspecting():
    """Whether `inspecting` is open."""
    return _IS_INSPECTING.get()


def traced_functions():
    """Trace `tf.function`s inside, even if functions are to run eagerly."""
    return _functions_run_eagerly(False)


def inline_functions():
    """Put the ops of `tf.function`s called inside into the caller's graph."""
    return _functions_run_eagerly(True)


@contextlib.contextmanager
def _functions_run_eagerly(run_eagerly):
    original = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(run_eagerly)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(original)


def traced_once(function, *arguments):
    """Return `function(*arguments)`, traced with these as a graph's inputs."""
    with traced_functions():
        traced = tf.function(function, autograph=False)
        return traced.get_concrete_function(*arguments)(*arguments)


try:
    from tensorflow.python.ops import control_flow_util
except ImportError:
    control_flow_util = None
try:
    from tensorflow.compiler.tf2xla.python.xla import dynamic_update_slice
except ImportError:
    dynamic_update_slice = None


def in_xla():
    """Tell whether a function with `jit_compile=True` is traced.

    The fastest methods under XLA are not those of plain graphs. Without the
    private names the latter are used, which are correct under XLA, but slow.
    """
    if tf.executing_eagerly() or control_flow_util is None:
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def _updated_slice_gradient(op, gradient):
    """Return the gradients of `XlaDynamicUpdateSlice`; TensorFlow has none.

    It is the gradient of a slice under XLA; Keras uses it on all devices.
    """
    target, update, begins = op.inputs
    # XLA moves a part that would reach beyond the end back into the tensor.
    room = tf.cast(tf.shape(target) - tf.shape(update), begins.dtype)
    begins = tf.maximum(tf.minimum(begins, room), 0)
    assert dynamic_update_slice is not None
    target_gradient = dynamic_update_slice(
        gradient, tf.zeros_like(update), begins
    )
    update_gradient = tf.slice(gradient, begins, tf.shape(update, begins.dtype))
    return target_gradient, update_gradient, None


if dynamic_update_slice is not None:
    with contextlib.suppress(KeyError):  # TensorFlow has one.
        tf.RegisterGradient("XlaDynamicUpdateSlice")(_updated_slice_gradient)

#: The compute capability of the first NVIDIA cards that have it.
_FIRST_CAPABILITY = (8, 0)


def may_use_tf32():
    """Whether products of float32 may lose digits on a GPU that is visible.

    By TensorFloat-32 each operand of a matrix product or convolution keeps ten
    bits behind the first; sums are float32. Half precision is not affected: its
    numbers have no more bits, and they are widened before they are squared or
    weighted.
    """
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return False
    return any(map(_has_tf32, tf.config.get_visible_devices("GPU")))


def _has_tf32(physical):
    capability = compute_capability(physical)
    # Cards of AMD have no compute capability.
    if capability is None:
        return tf.test.is_built_with_rocm()
    return tuple(capability) >= _FIRST_CAPABILITY


@contextlib.contextmanager
def switched_off():
    """Let float32 products have all digits while it is open."""
    if not may_use_tf32():
        yield
        return
    switch = tf.config.experimental.enable_tensor_float_32_execution
    switch(False)
    try:
        yield
    finally:
        switch(True)


def require_no_tf32():
    """Refuse a step with noise where TensorFloat-32 may act in it."""
    if may_use_tf32():
        raise ValueError(
            "The aggregation adds noise, which hides samples of at most "
            "`clip_norm`. Expected products with all digits of float32; fit() "
            "and train_on_batch() see to that. Received: a step in another "
            "loop while TensorFloat-32 is on, by which a sample may keep more. "
            "Before the step is traced, call "
            "tf.config.experimental.enable_tensor_float_32_execution(False)."
        )


def warn_of_tf32():
    """Warn once that a clipped sample may keep more than the clip norm."""
    if may_use_tf32():
        _warn_of_tf32()


@functools.cache
def _warn_of_tf32():
    warnings.warn(
        "On this GPU products of float32 have ten bits (TensorFloat-32), so "
        "that a clipped sample may keep more than `clip_norm`: about 0.4 % as "
        "a rule, up to 1.8 times as much where its positions cancel. For all "
        "digits, call tf.config.experimental."
        "enable_tensor_float_32_execution(False) before compile().",
        stacklevel=2,
    )
