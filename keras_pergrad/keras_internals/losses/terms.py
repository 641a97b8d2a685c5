"""The terms of a loss: the compiled losses, added ones, weight regularisers.

A term is one entry of the compiled loss, times its loss weight, or what one
layer gave to `add_loss`. Keras minimises their sum and weight regularisers.

Private names in use: `CompileLoss._flat_losses`, `CompileLoss.dtype`;
`Variable._regularizer`.
"""

import contextlib

import keras
import tensorflow as tf
from keras import ops

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.graphs.gradients import whole_loss
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    entries_of,
    layers_of,
    own_losses,
)

#: What stands before the name of a layer that calls `add_loss`.
ADDED = "add_loss/"


def added(layer):
    """Return the name of what a layer gives to `add_loss`."""
    return ADDED + layer.name


def names(model):
    """Return a name for each compiled loss, in Keras's order."""
    entries = entries_of(compiled_loss(model))
    found = [entry.name for entry in entries]
    if len(set(found)) == len(found):
        return found
    # Several losses of one output, or outputs without a name.
    found = [
        name if found.count(name) == 1 else _joined(name, entry.loss.name)
        for name, entry in zip(found, entries)
    ]
    return [
        name if found.count(name) == 1 else f"{name}_{found[:k].count(name)}"
        for k, name in enumerate(found)
    ]


def _joined(name, loss):
    return name if name == loss else f"{name}_{loss}"


@contextlib.contextmanager
def noting_values(model, noted):
    """Put the value of each compiled loss into a dict by its index.

    Each is marked as a loss for itself.
    """
    compiled = compiled_loss(model)
    entries = [
        entry._replace(loss=_Noting(entry.loss, k, noted))
        for k, entry in enumerate(entries_of(compiled))
    ]
    if not entries:
        yield
        return
    with attribute(compiled, "_flat_losses", entries):
        yield


class _Noting:
    """A loss whose value is noted."""

    def __init__(self, loss, index, noted):
        self._loss, self._index, self._noted = loss, index, noted

    def __call__(self, *args):
        value = whole_loss(self._loss(*args))
        self._noted[self._index] = value
        return value


def terms_of(model, y, y_pred, noted):
    """Return the terms of a loss, by name, from the noted values."""
    compiled = compiled_loss(model)
    terms = {}
    for k, (name, entry) in enumerate(
        zip(names(model), entries_of(compiled), strict=True)
    ):
        if k not in noted or (k and is_one_output(y, y_pred)):
            continue  # Keras minimises the first loss of a single output.
        value = ops.cast(noted[k], dtype=compiled.dtype)
        if entry.loss_weights is not None:
            value = ops.multiply(value, entry.loss_weights)
        terms[name] = value
    for layer in layers_of(model):
        for loss in own_losses(layer):
            name, value = added(layer), tf.reduce_sum(loss)
            before = terms.get(name)
            terms[name] = value if before is None else before + value
    return terms


def is_one_output(y, y_pred):
    """Whether Keras takes targets and outputs for those of one output."""
    return not tf.nest.is_nested(y) and not tf.nest.is_nested(y_pred)


# The part of the weight regularisers in a loss, and their gradients.
#
# A regulariser belongs to no sample: its gradient is added after aggregation.
# Keras adds every regulariser to the loss once, but an own `compute_loss` may
# leave them out or weigh them. So the loss is differentiated with respect to
# each penalty.


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
