"""Advice on what TensorFlow refuses where XLA compiles or there is a GPU.

TensorFlow names the op or the variable, before a weight has changed; what to do
it does not say. Keras compiles by XLA on a GPU by default.
"""

import contextlib

import tensorflow as tf

_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.UnimplementedError,
)
_OFF = (
    "Keras compiles a step by XLA on a GPU unless it is told not to: "
    "compile(..., jit_compile=False) runs the step without it."
)
#: What is in TensorFlow's error, and what to do.
_ADVICE = (
    (
        "unsupported operations when trying to compile",
        "XLA has no kernel for the ops named above (Python functions, strings "
        f"and look-ups of them are none of its). {_OFF} Or do it to the data "
        "before fit(), in tf.data.",
    ),
    (
        "Trying to access resource",
        "TensorFlow keeps variables of whole numbers of 32 bits, bool and "
        "string on the host, where XLA on a GPU cannot reach the one named "
        f"above. Make it int64 or float32, or do without XLA. {_OFF}",
    ),
    (
        "must be a compile-time constant",
        "XLA must know every size while it compiles; the op named above has "
        f"one that follows from the data. {_OFF}",
    ),
    (
        "eterminis",
        "tf.config.experimental.enable_op_determinism() is on, and the op "
        "named above has no deterministic kernel on this device. Replace it, "
        "train on the CPU, or leave determinism off.",
    ),
)


@contextlib.contextmanager
def advising():
    """Add advice to an error of TensorFlow that asks for it."""
    try:
        yield
    except _ERRORS as error:
        for sign, advice in _ADVICE:
            if sign in str(error):
                error.add_note(advice)
                break
        raise
