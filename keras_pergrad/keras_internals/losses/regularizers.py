"""The penalties on weights: their values, and their gradients on their own.

Private name in use: `Variable._regularizer`.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.models.parts import (
    has_own_loss,
    patched_attributes,
    shared_patch,
)


class Penalties:
    """What the loss of a model does with the penalties on its weights.

    A regulariser belongs to no sample: its gradient is added after aggregation.
    Keras adds every regulariser to the loss once, but an own `compute_loss` may
    leave them out or weigh them. So the loss is differentiated with respect to
    each penalty.
    """

    def __init__(self, model):
        self.variables = list(model.trainable_variables)
        overrides_loss = has_own_loss(model)
        penalized = [v for v in self.variables if v.regularizer is not None]
        self._penalized = penalized if overrides_loss else []
        self._penalties = []
        self._tape = None

    @contextlib.contextmanager
    def noted(self):
        """Record the penalties while the loss is computed."""
        if not self._penalized:
            yield
            return
        tape = tf.GradientTape(watch_accessed_variables=False)
        patches = [
            (variable, "_regularizer", self._recording_regularizer(variable))
            for variable in self._penalized
        ]
        with tape as self._tape, patched_attributes(patches):
            yield

    def _recording_regularizer(self, variable):
        regularizer = variable.regularizer

        def function(value):
            penalty = tf.convert_to_tensor(regularizer(value))
            self._tape.watch(penalty)
            self._penalties.append((variable, penalty))
            return penalty

        return function

    def gradients(self, loss):
        """Return the penalties' gradients in the unscaled `noted` loss."""
        if not self._penalized:
            return regularization_gradients(self.variables)
        weights = {}
        penalty_gradients = self._tape.gradient(
            loss, [p for _, p in self._penalties]
        )
        for (variable, _), penalty_gradient in zip(
            self._penalties, penalty_gradients
        ):
            if penalty_gradient is not None:
                weights.setdefault(id(variable), []).append(
                    tf.stop_gradient(tf.convert_to_tensor(penalty_gradient))
                )
        weights = {key: tf.add_n(parts) for key, parts in weights.items()}
        return regularization_gradients(self.variables, weights)


@contextlib.contextmanager
def without_gradients(variables):
    """Let regularisers have values without gradients, which are added later."""
    with contextlib.ExitStack() as stack:
        for variable in variables:
            if variable.regularizer is not None:
                make = functools.partial(_without_gradient, variable)
                stack.enter_context(
                    shared_patch(variable, "_regularizer", make)
                )
        yield


def _without_gradient(variable, regularizer):
    """Return a variable's regulariser without its gradient."""

    def penalty(value):
        # In a `keras.StatelessScope` Keras may not find the value.
        value = variable.value if value is None else value
        return tf.stop_gradient(regularizer(value))

    return penalty


def regularization_gradients(variables, weights=None):
    """Return the regularisers' gradient at each variable, or None."""
    # A regulariser may also read other variables: the tape watches all.
    # `weights`: id of a variable → the factor of its penalty; else left out.
    penalized = [
        v
        for v in variables
        if v.regularizer is not None and (weights is None or id(v) in weights)
    ]
    if not penalized:
        return [None] * len(variables)
    values = [v.value for v in variables]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        terms = [v.regularizer(v.value) for v in penalized]
        if weights is not None:
            terms = [
                t * tf.cast(weights[id(v)], t.dtype)
                for v, t in zip(penalized, terms)
            ]
        penalty = _sum(terms)
    return [
        None if g is None else tf.convert_to_tensor(g)
        for g in tape.gradient(penalty, values)
    ]


def regularization_loss(variables):
    """Return the sum of the variables' regularisers, a scalar."""
    return _sum(
        [v.regularizer(v.value) for v in variables if v.regularizer is not None]
    )


def _sum(terms):
    dtype = keras.config.floatx()
    terms = [tf.cast(tf.reduce_sum(t), dtype) for t in terms]
    return tf.add_n(terms) if terms else tf.zeros([], dtype)
