"""Steps that are traced, also where everything else runs eagerly."""

import weakref

import tensorflow as tf

from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.tracing import traced_functions
from keras_pergrad.modes.base import Step
from keras_pergrad.samples import function_cache
from keras_pergrad.samples.trial_batches import first_batch


def take_step(mode, model, x, y, sample_weight):
    """Return the `Step` of a mode, from a graph if the mode needs one.

    Args:
        mode: a `GradientMode`; one that needs a graph does nothing in Python
            but to build it.
        model: the compiled model.
        x, y, sample_weight: the batch.
    """
    eager = tf.executing_eagerly() and not replicas.several()
    if mode.needs_graph and eager:
        return _traced_step(mode, model, (x, y, sample_weight))
    return mode.step(model, x, y, sample_weight)


def _traced_step(mode, model, batch):
    """Take a step by a `tf.function`, which is kept with the model."""
    key = "step", id(mode), mode.is_watched
    function = function_cache.kept(
        model, key, lambda: _traced(mode, weakref.ref(model))
    )
    with first_batch(batch), traced_functions():
        loss, y_pred, masks, gradients, statistics = function(*batch)
    for tensor, mask in zip(_tensors(y_pred), masks):
        if mask is not None:
            tensor._keras_mask = mask
    return Step(loss, y_pred, gradients, statistics)


def traced_once(function):
    """Return what `function()` gives, computed in a graph of its own."""
    with traced_functions():
        return tf.function(function, autograph=False).get_concrete_function()()


def _traced(mode, model_reference):
    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight):
        step = mode.step(model_reference(), x, y, sample_weight)
        masks = [getattr(t, "_keras_mask", None) for t in _tensors(step.y_pred)]
        return step.loss, step.y_pred, masks, step.gradients, step.statistics

    return function


def _tensors(structure):
    return [t for t in tf.nest.flatten(structure) if tf.is_tensor(t)]
