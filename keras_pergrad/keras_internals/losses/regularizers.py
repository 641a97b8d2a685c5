"""The penalties on weights: their values, and their gradients on their own.

Private name in use: `Variable._regularizer`.
"""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.models.parts import (
    has_own_loss,
    patched_attribute,
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
        with contextlib.ExitStack() as stack:
            self._tape = stack.enter_context(
                tf.GradientTape(watch_accessed_variables=False)
            )
            for variable in self._penalized:
                regularizer = self._recording_regularizer(variable)
                stack.enter_context(
                    patched_attribute(variable, "_regularizer", regularizer)
                )
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
        weights = {id(v): None for v in self._penalized}
        penalty_gradients = self._tape.gradient(
            loss, [p for _, p in self._penalties]
        )
        for (variable, _), penalty_gradient in zip(
            self._penalties, penalty_gradients
        ):
            if penalty_gradient is not None:
                previous = weights[id(variable)]
                penalty_gradient = tf.stop_gradient(
                    tf.convert_to_tensor(penalty_gradient)
                )
                weights[id(variable)] = (
                    penalty_gradient
                    if previous is None
                    else previous + penalty_gradient
                )
        return regularization_gradients(self.variables, weights)


@contextlib.contextmanager
def without_gradients(variables):
    """Let regularisers have values without gradients, which are added later."""
    with contextlib.ExitStack() as stack:
        for variable in variables:
            regularizer = variable.regularizer
            if regularizer is not None and not isinstance(
                regularizer, _WithoutGradient
            ):
                without_gradient = _WithoutGradient(variable, regularizer)
                stack.enter_context(
                    patched_attribute(
                        variable, "_regularizer", without_gradient
                    )
                )
        yield


class _WithoutGradient:
    """A regulariser without a gradient."""

    def __init__(self, variable, regularizer):
        self.variable, self.regularizer = variable, regularizer

    def __call__(self, value):
        # In a `keras.StatelessScope` Keras may not find the value.
        value = self.variable.value if value is None else value
        return tf.stop_gradient(self.regularizer(value))


def regularization_gradients(variables, weights=None):
    """Return the regularisers' gradient at each variable, or None."""
    # A regulariser may also read other variables: the tape watches all.
    # `weights`: id of a variable → the factor of its penalty, or None to leave
    # it out.
    penalized = [
        v
        for v in variables
        if v.regularizer is not None
        and (weights is None or weights.get(id(v)) is not None)
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
