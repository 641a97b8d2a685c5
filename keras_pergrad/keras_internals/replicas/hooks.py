"""The places where Keras's `fit` lets a model take part.

Private names in use: `Model._maybe_symbolic_build`,
`_get_metrics_result_or_logs`, `_distribute_strategy`,
`_assert_compile_called`.
"""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.fit.train_function import make_for_mode
from keras_pergrad.keras_internals.models.parts import build_symbolically
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.tensorflow.cudnn import LoopsWhereMasked
from keras_pergrad.keras_internals.tensorflow.settings import switched_off


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


not_converted = tf.autograph.experimental.do_not_convert


def converted(function):
    """Return a user's function as AutoGraph calls it where it is on.

    In a user's `tf.function` AutoGraph must not convert this package: it would
    convert every function that is called while the step is traced, which takes
    many times as long as the trace itself.
    """
    autograph = tf.__internal__.autograph
    context = autograph.control_status_ctx()
    if context.status.name != "ENABLED" or not callable(function):
        return function
    return autograph.tf_convert(function, context)
