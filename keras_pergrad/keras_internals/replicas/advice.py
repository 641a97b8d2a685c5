"""Advice on what TensorFlow and Keras refuse without a way out.

They name the op or the variable, before a weight has changed, but not what to
do about it. Keras compiles by XLA on a GPU by default.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.common.batches import TEXTS_TO_NUMBERS
from keras_pergrad.keras_internals.replicas.strategies import on_several_workers

_ERRORS = (
    ValueError,
    NotImplementedError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.UnimplementedError,
)
_NO_XLA = (
    "Keras compiles a step by XLA on a GPU by default: "
    "compile(..., jit_compile=False) runs the step without it."
)
#: What TensorFlow and Keras say of texts where they expect numbers.
TEXT_ERRORS = (
    "Cast string to ",
    "'string' is not a valid dtype for Keras type promotion",
    "Invalid dtype: str",
)
_TEXTS = f"The layers expected numbers and received texts. {TEXTS_TO_NUMBERS}"
#: (a part of TensorFlow's error, what to do).
_ADVICE = (
    (
        "unsupported operations when trying to compile",
        "XLA has no kernel for the ops named above (Python functions, strings "
        f"and look-ups of them are none of its). {_NO_XLA} Or do it to the "
        "data before fit(), in tf.data.",
    ),
    (
        "Trying to access resource",
        "TensorFlow keeps variables of whole numbers of 32 bits, bool and "
        "string on the host, where XLA on a GPU cannot reach the one named "
        f"above. Make it int64 or float32, or do without XLA. {_NO_XLA}",
    ),
    (
        "must have rank (ndim) `target.ndim - 1`",
        "A sparse loss expected the number of each sample's class, and the "
        "targets have one axis more. For one-hot targets use "
        "'categorical_crossentropy', or pass y.argmax(-1).",
    ),
    (
        "Arguments `target` and `output` must have the same rank",
        "The loss expected targets of the shape of the outputs. For numbers "
        "of classes use 'sparse_categorical_crossentropy', or pass "
        "keras.utils.to_categorical(y).",
    ),
    (
        "Received a label value",
        "The loss expected the numbers of the classes, from 0 to the number "
        "of outputs - 1. Number the classes anew, y = numpy.unique(y, "
        "return_inverse=True)[1], or give the last layer as many units as "
        "there are classes.",
    ),
    (
        "None values not supported",
        "None came where numbers are needed. Look for a loss or a metric of "
        "your own without a `return`, and for missing targets.",
    ),
    (
        "to a numpy array",
        "A step is traced, so that NumPy sees no numbers in it. Write a loss, "
        "a metric or a layer of your own with keras.ops or tf.",
    ),
    *((pattern, _TEXTS) for pattern in TEXT_ERRORS),
    (
        " is not in [0, ",
        "A look-up, as by an Embedding, expected ids from 0 to the size of "
        "its table - 1, input_dim of an Embedding. Enlarge the table to the "
        "largest id + 1, or map other ids to one that stands for them. "
        "`class_weight` of fit() must have a weight for every class in y.",
    ),
    (
        "must be a compile-time constant",
        "XLA must know every size while it compiles; the op named above has "
        f"one that follows from the data. {_NO_XLA}",
    ),
    (
        "eterminis",  # determinism, Deterministic, nondeterministic
        "tf.config.experimental.enable_op_determinism() is on, and the op "
        "named above has no deterministic kernel on this device. Replace it, "
        "train on the CPU, or leave determinism off.",
    ),
)
_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
_WORKER_ADVICE = (
    "Another worker has most likely stopped; the error above or its own log "
    "says which and why. No worker can go on without it: start all of them "
    "again. keras.callbacks.BackupAndRestore goes on from the last epoch."
)
_LOGS_ADVICE = (
    "On several workers Keras takes the mean over the first axis of what "
    "train_step() returns. In a train_step of your own, return logs of shape "
    "(1,): {name: tf.reshape(value, [1]) for name, value in logs.items()}."
)


def advise(error, strategy=None):
    """Add advice to an error of TensorFlow or of Keras that asks for it.

    `strategy`: the one whose worker may have raised it, or None.
    """
    if isinstance(error, _WORKER_ERRORS) and on_several_workers(strategy):
        error.add_note(_WORKER_ADVICE)
    if isinstance(error, ValueError):
        is_reduction = "Invalid reduction dimension 0" in str(error)
        if is_reduction and on_several_workers(strategy):
            error.add_note(_LOGS_ADVICE)
    if not isinstance(error, _ERRORS):
        return
    for pattern, advice in _ADVICE:
        if pattern in str(error):
            # It may pass several of these.
            if advice not in getattr(error, "__notes__", ()):
                error.add_note(advice)
            break


@contextlib.contextmanager
def advising():
    """Add advice to an error of TensorFlow or of Keras that asks for it."""
    try:
        yield
    except Exception as error:
        advise(error)
        raise
