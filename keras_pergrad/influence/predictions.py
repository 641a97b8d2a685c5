"""Test samples that are asked for the model's prediction, not for their loss.

Each gets a target, and a weight, with which the gradient of its compiled loss
is that of the prediction: of −log p of the class that the model takes, and of
minus the output of a regression.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.data_batches import batches_of
from keras_pergrad.functions.data_passes import PASS_SIZE
from keras_pergrad.influence.likelihoods import (
    BERNOULLI,
    GAUSSIAN,
    KNOWN_LOSSES,
    NoLikelihood,
    likelihoods_of,
)
from keras_pergrad.influence.preconditions import is_batched, make_test_batches
from keras_pergrad.keras_internals.losses.losses import additional_losses
from keras_pergrad.keras_internals.models.parts import require_inputs


def make_prediction_batches(model, x):
    """Return a function as that of `make_test_batches`, of inputs alone."""
    if is_batched(x):
        parts = [inputs for inputs, _, _ in batches_of(x)]
        require_inputs(model, parts[0])
        x = tf.nest.map_structure(lambda *a: np.concatenate(a), *parts)
    outputs = [
        model(inputs, training=False)
        for inputs, _, _ in batches_of(x, batch_size=PASS_SIZE)
    ]
    likelihood = _the_likelihood(model, outputs[0])
    outputs = np.concatenate([tf.nest.flatten(o)[0] for o in outputs])
    targets = _most_likely(likelihood, outputs)
    batches = make_test_batches(model, x, targets, sample_weight=None)
    if likelihood.kind != GAUSSIAN:
        return batches
    return lambda size: _ValueBatches(model, batches(size))


class _ValueBatches:
    """Batches whose weighted squared errors have minus the output's gradient.

    That of w (output − t)² is 2 w (output − t) times the output's. With t at
    least 1 from the output, nothing cancels.
    """

    def __init__(self, model, batches):
        self._model, self._batches = model, batches

    def __iter__(self):
        for x, targets, _ in self._batches:
            # Those at the weights of the checkpoint.
            output = self._model(x, training=False)
            output = tf.reshape(tf.nest.flatten(output)[0], targets.shape)
            targets = tf.where(output < 0, 1.0, -1.0)
            targets = tf.cast(targets, output.dtype)
            weights = -0.5 / (output - targets)
            yield x, targets, tf.reshape(weights, [-1])


def _the_likelihood(model, outputs):
    """Return the likelihood of a model's one prediction, or refuse it."""
    flat = tf.nest.flatten(outputs)
    try:
        likelihoods = likelihoods_of(model, outputs)
        if len(flat) != 1 or flat[0].shape.rank != 2:
            shapes = [tuple(output.shape) for output in flat]
            raise NoLikelihood(f"outputs of the shapes {shapes}")
        if additional_losses(model):
            raise NoLikelihood("terms of add_loss")
        (likelihood,) = likelihoods
        width = flat[0].shape[1]
        is_binary = likelihood.kind in (BERNOULLI, GAUSSIAN)
        if is_binary != (width == 1):
            raise NoLikelihood(f"{width} outputs of {likelihood.kind} loss")
        if likelihood.reduction not in ("sum_over_batch_size", "mean"):
            raise NoLikelihood(f"reduction={likelihood.reduction!r}")
    except NoLikelihood as error:
        raise ValueError(
            f"Model {model.name!r} has no prediction that is one class or one "
            "number for each sample. Expected for of='prediction' an output "
            f"(n, classes), or (n, 1), and {KNOWN_LOSSES}. Received: {error}. "
            "Use of='loss', with targets."
        ) from None
    return likelihood


def _most_likely(likelihood, outputs):
    """Return the targets that a model's outputs say, as its loss takes them."""
    if likelihood.kind == GAUSSIAN:
        return np.array(outputs)
    if likelihood.kind == BERNOULLI:
        threshold = 0 if likelihood.from_logits else 0.5
        return (outputs > threshold).astype(outputs.dtype)
    classes = outputs.argmax(1)
    if likelihood.takes_indices:
        return classes
    return keras.utils.to_categorical(classes, outputs.shape[1])
