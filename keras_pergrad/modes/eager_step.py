"""The step of a mode that needs a graph, in eager execution."""

import weakref

import tensorflow as tf

from keras_pergrad.common.batches import ranks
from keras_pergrad.keras_internals.models.parts import mask_of, set_mask
from keras_pergrad.keras_internals.tensorflow.settings import traced_functions
from keras_pergrad.modes import one_step
from keras_pergrad.modes.one_step import Step
from keras_pergrad.uses import function_cache


def traced_step(mode, model, batch, *, options):
    """Return an eager step, run as a `tf.function` that the model keeps."""
    # In Python such a step only builds the graph. On several replicas the work
    # is traced elsewhere.
    key = "step", id(mode), options.is_watched, ranks(batch)
    # The model keeps the function, which therefore must not hold the model.
    reference = weakref.ref(model)

    def compute_step(*batch):
        step, _ = one_step.step_of_whole_batch(
            mode, reference(), batch, options=options
        )
        masks = [mask_of(t) for t in _flat_tensors(step.y_pred)]
        results = step.gradients, step.statistics, step.readings
        return step.loss, step.y_pred, masks, *results

    def make_function():
        return tf.function(compute_step, autograph=False, reduce_retracing=True)

    if options.readers:
        function = options.traced.setdefault(key, make_function())
    else:
        function = function_cache.kept(model, key, make_function)
    with traced_functions():
        loss, y_pred, masks, *results = function(*batch)
    # Keras's mask is an attribute of a tensor, which results of functions lose.
    for tensor, mask in zip(_flat_tensors(y_pred), masks):
        if mask is not None:
            set_mask(tensor, mask)
    gradients, statistics, readings = results
    return Step(
        loss, y_pred, gradients, statistics=statistics, readings=readings
    )


def _flat_tensors(structure):
    return [t for t in tf.nest.flatten(structure) if tf.is_tensor(t)]
