"""The places where Keras's `fit` lets a model take part, and errors there.

Private names in use: `Model._maybe_symbolic_build`,
`_get_metrics_result_or_logs`, `_distribute_strategy`,
`_assert_compile_called`.
"""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common.batches import TEXTS_TO_NUMBERS
from keras_pergrad.keras_internals.fit.train_function import make_for_mode
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.tensorflow.kernels import LoopsWhereMasked
from keras_pergrad.keras_internals.tensorflow.settings import switched_off

# Advice on what TensorFlow and Keras refuse without a way out.
#
# They name the op or the variable, before a weight has changed, but not
# what to do about it. Keras compiles by XLA on a GPU by default.


_ERRORS = (
    ValueError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.UnimplementedError,
)
_NO_XLA = (
    "Keras compiles a step by XLA on a GPU unless it is told not to: "
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
    *((pattern, _TEXTS) for pattern in TEXT_ERRORS),
    (
        " is not in [0, ",
        "A look-up, as by an Embedding, expected ids from 0 to the size of "
        "its table - 1, input_dim of an Embedding. Enlarge the table to the "
        "largest id + 1, or map other ids to one that stands for them.",
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


@contextlib.contextmanager
def advising():
    """Add advice to an error of TensorFlow that asks for it."""
    try:
        yield
    except _ERRORS as error:
        for pattern, advice in _ADVICE:
            if pattern in str(error):
                # It may pass several of these.
                if advice not in getattr(error, "__notes__", ()):
                    error.add_note(advice)
                break
        raise


# The places where Keras's `fit` lets a model take part.


def require_compiled(model, name):
    """Refuse what only a compiled model has, with Keras's own error."""
    model._assert_compile_called(name)


@contextlib.contextmanager
def bounded_samples(model):
    """Let products have all digits of float32 while noise hides samples."""
    mode = getattr(model, "gradient_mode", None)
    aggregation = mode and mode.aggregation
    adds_noise = aggregation is not None and aggregation.adds_noise
    with switched_off(adds_noise):
        yield


class FitHooks(LoopsWhereMasked):
    """A base of models that build for all replicas, and choose their logs."""

    # A model defines `_logs_of_epoch(logs, otherwise)`. It returns an epoch's
    # logs from those of its last step, or else `otherwise(logs)`.

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Build all that replicas share before they take their turns."""
        # Keras builds with the mean of all replicas' batches, which fails on
        # several workers. The batch of one replica has the same shapes.
        with replicas.scope_of(self):
            model: Any = self
            strategy = model._distribute_strategy
            if strategy is None:
                return
            if iterator is not None:
                data_batch = replicas.first_replica_part(strategy, iterator)
            if type(self).call is not keras.Model.call:
                build_symbolically(self, data_batch)
            elif not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        replicas.require_inside(self)

    def train_on_batch(self, *args, **kwargs):
        with bounded_samples(self), advising():
            following: Any = super()
            return following.train_on_batch(*args, **kwargs)

    def make_train_function(self, force=False):
        """Make Keras's train function; see the base class."""
        make_for_mode(self, super(), force)

    def _get_metrics_result_or_logs(self, logs):
        model: Any = self
        following: Any = super()
        return model._logs_of_epoch(logs, following._get_metrics_result_or_logs)


# AutoGraph in a user's `tf.function`, which must not convert this package.
#
# It would convert every function that is called while the step is traced,
# which takes many times as long as the trace itself.


not_converted = tf.autograph.experimental.do_not_convert


def converted(function):
    """Return a user's function as AutoGraph calls it where it is on."""
    autograph = tf.__internal__.autograph
    context = autograph.control_status_ctx()
    if context.status.name != "ENABLED" or not callable(function):
        return function
    return autograph.tf_convert(function, context)
