"""The places where Keras's `fit` lets a model take part.

Private names in use: `Model._maybe_symbolic_build`,
`_get_metrics_result_or_logs`, `_distribute_strategy`,
`_assert_compile_called`, `_jit_compile`.
"""

import contextlib
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.models.parts import (
    RECURRENT,
    build_symbolically,
    layers_of,
    patched_attribute,
)
from keras_pergrad.keras_internals.replicas import replicas, strategies
from keras_pergrad.keras_internals.tensorflow.cudnn import loops_where_masked
from keras_pergrad.keras_internals.tensorflow.settings import switched_off


def require_compiled(model, name):
    """Refuse what only a compiled model has, with Keras's own error."""
    model._assert_compile_called(name)


def bounded_samples(mode):
    """Let products have all digits of float32 while noise hides samples.

    `mode`: the gradient mode of the model that trains, or None.
    """
    aggregation = mode and mode.aggregation
    if aggregation is None or not aggregation.adds_noise:
        return contextlib.nullcontext()
    return switched_off()


class FitHooks:
    """A base of models that build for all replicas, and choose their logs."""

    # A model defines `_logs_of_epoch(logs, otherwise)`. It returns an epoch's
    # logs from those of its last step, or else `otherwise(logs)`.

    def __call__(self, *args, **kwargs):
        model: Any = self
        following: Any = super()
        layers = [x for x in layers_of(model) if isinstance(x, RECURRENT)]
        if not layers:
            return following.__call__(*args, **kwargs)
        with loops_where_masked(layers):
            return following.__call__(*args, **kwargs)

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
                data_batch = strategies.first_replica_part(strategy, iterator)
            if type(self).call is not keras.Model.call:
                build_symbolically(self, data_batch)
            elif not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        strategies.require_inside(self)

    def make_train_function(self, force=False):
        """Make Keras's train function; see the base class."""
        model: Any = self
        compiles_itself = contextlib.nullcontext()
        # Where XLA is to compile the parts of a step, Keras must not have it
        # compile the whole.
        if model.compiled and model.gradient_mode.compiles_parts(model):
            compiles_itself = patched_attribute(model, "_jit_compile", False)
        with compiles_itself:
            super().make_train_function(force)

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
