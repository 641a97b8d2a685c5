"""Steps that are traced, even if everything else runs eagerly."""

import functools
import weakref

import tensorflow as tf

from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import ranks
from keras_pergrad.keras_internals.model_parts import mask_of, set_mask
from keras_pergrad.keras_internals.tracing import traced_functions
from keras_pergrad.modes.base import Step
from keras_pergrad.samples import function_cache


def in_graph(step):
    """Decorate a mode's `step`, so that it is traced in eager execution too.

    This is for modes that look at ops, which only a graph shows. In Python
    such a step only builds the graph. On several replicas the step is called
    directly: their work is traced elsewhere.
    """

    @functools.wraps(step)
    def taken(mode, model, x, y, sample_weight):
        if tf.executing_eagerly() and not replicas.several():
            return _traced_step(step, mode, model, (x, y, sample_weight))
        return step(mode, model, x, y, sample_weight)

    return taken


def _traced_step(step, mode, model, batch):
    """Run a step as a `tf.function`, which is kept with the model."""
    key = "step", step, id(mode), mode.is_watched, ranks(batch)
    function = function_cache.kept(
        model, key, lambda: _traced(step, mode, weakref.ref(model))
    )
    with traced_functions():
        loss, y_pred, masks, gradients, statistics = function(*batch)
    for tensor, mask in zip(_tensors(y_pred), masks):
        if mask is not None:
            set_mask(tensor, mask)
    return Step(loss, y_pred, gradients, statistics)


def traced_once(function, *arguments):
    """Return what `function(*arguments)` gives, computed in a graph of its own.

    The arguments are inputs of that graph, as the samples of a step must be.
    """
    with traced_functions():
        traced = tf.function(function, autograph=False)
        return traced.get_concrete_function(*arguments)(*arguments)


def _traced(step, mode, model_reference):
    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight):
        found = step(mode, model_reference(), x, y, sample_weight)
        outputs = _tensors(found.y_pred)
        masks = [mask_of(t) for t in outputs]
        return (
            found.loss,
            found.y_pred,
            masks,
            found.gradients,
            found.statistics,
        )

    return function


def _tensors(structure):
    return [t for t in tf.nest.flatten(structure) if tf.is_tensor(t)]
