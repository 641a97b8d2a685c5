"""The part of the weight regularisers in a loss, and their gradients.

A regulariser belongs to no sample: its gradient is added after aggregation.
Keras adds every regulariser to the loss once, but an own `compute_loss` may
leave them out or weigh them. So the loss is differentiated with respect to
each penalty.

Private name in use: `Variable._regularizer`.
"""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.common.patching import attribute


class Penalties:
    """What the loss of a model does with the penalties on its weights."""

    def __init__(self, model):
        self.variables = list(model.trainable_variables)
        own = type(model).compute_loss is not keras.Model.compute_loss
        penalized = [v for v in self.variables if v.regularizer is not None]
        self._watched = penalized if own else []
        self._noted = []
        self._tape = None

    @contextlib.contextmanager
    def noted(self):
        """Note the penalties while the loss is computed."""
        if not self._watched:
            yield
            return
        with contextlib.ExitStack() as stack:
            self._tape = stack.enter_context(
                tf.GradientTape(watch_accessed_variables=False)
            )
            for variable in self._watched:
                noting = self._noting(variable)
                stack.enter_context(attribute(variable, "_regularizer", noting))
            yield

    def _noting(self, variable):
        regularizer = variable.regularizer

        def function(value):
            penalty = tf.convert_to_tensor(regularizer(value))
            self._tape.watch(penalty)
            self._noted.append((variable, penalty))
            return penalty

        return function

    def gradients(self, loss):
        """Return the penalties' gradients in the unscaled `noted` loss."""
        if not self._watched:
            return regularization_gradients(self.variables)
        weights = {id(v): None for v in self._watched}
        slopes = self._tape.gradient(loss, [p for _, p in self._noted])
        for (variable, _), slope in zip(self._noted, slopes):
            if slope is not None:
                before = weights[id(variable)]
                slope = tf.stop_gradient(tf.convert_to_tensor(slope))
                weights[id(variable)] = (
                    slope if before is None else before + slope
                )
        return regularization_gradients(self.variables, weights)


@contextlib.contextmanager
def without_gradients(variables):
    """Let regularisers have values, but no gradient: it is added later."""
    with contextlib.ExitStack() as stack:
        for variable in variables:
            before = variable.regularizer
            if before is not None and not isinstance(before, _Apart):
                apart = _Apart(variable, before)
                stack.enter_context(attribute(variable, "_regularizer", apart))
        yield


class _Apart:
    """A regulariser without a gradient."""

    def __init__(self, variable, regularizer):
        self.variable, self.regularizer = variable, regularizer

    def __call__(self, value):
        # In a `keras.StatelessScope` Keras may not find the value.
        value = self.variable.value if value is None else value
        return tf.stop_gradient(self.regularizer(value))


def regularization_gradients(variables, weights=None):
    """Return the regularisers' gradient at each variable, or None."""
    # One may read other variables than its own. `weights`: the factor of each
    # penalty by the id of its variable, or None to leave it out.
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
