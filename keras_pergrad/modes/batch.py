"""The ordinary batch gradient, and the loss of the batch of all replicas."""

import warnings
from typing import Any

import tensorflow as tf

from keras_pergrad.common.batches import sample_count
from keras_pergrad.keras_internals.losses.losses import loss_of_batch
from keras_pergrad.keras_internals.models.parts import call_model
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.modes import microbatches
from keras_pergrad.modes.base import (
    GradientMode,
    PartialSums,
    Step,
    gradient_modes,
)
from keras_pergrad.modes.fractions import NotAdditive, require_additive_loss
from keras_pergrad.modes.sums import MicrobatchSums, unscaled


class Batch(GradientMode):
    """The ordinary batch gradient: exactly what `keras.Model` does.

    Under a `tf.distribute` strategy it is the gradient of the batch of all
    replicas, even if their shares differ in size; `keras.Model` gives the
    replicas equal weight. A loss that is not made of one value per sample is
    treated as in `keras.Model`, with a warning.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Batch()
    """

    def step(self, model: Any, x: Any, y: Any, sample_weight: Any) -> Step:
        if replicas.has_several_replicas():
            try:
                return super().step(model, x, y, sample_weight)
            except NotAdditive as error:
                _warn(error)
        with tf.GradientTape() as tape:
            y_pred = call_model(model, x)
            loss = loss_of_batch(
                model, x, y, y_pred=y_pred, sample_weight=sample_weight
            )
            target = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(target, model.trainable_variables)
        # A mean over no samples is NaN.
        results = replicas.zero_without_samples(
            sample_count(x), (loss, gradients)
        )
        loss, gradients = results
        return Step(loss, y_pred, gradients)

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        with part.watched(), tf.GradientTape() as tape:
            y_pred, added = part.call()
            target = part.target(y_pred, added)
        gradients = tape.gradient(target, model.trainable_variables)
        return PartialSums(y_pred, unscaled(gradients, part.scale))


def evaluate(model, x, y, sample_weight):
    """Return (loss, outputs, whether it is that of all replicas) of a batch."""
    try:
        require_additive_loss(model)
        find_kinds = microbatches.find_added_kinds(
            model, (x, y, sample_weight), training=False
        )
        batch_sums = MicrobatchSums(model, x, None, find_added_kinds=find_kinds)
        with replicas.PostponedUpdates() as scope:
            y_pred = call_model(model, x, training=False)
        scope.assign(batch_sums.count)
        terms = batch_sums.evaluate(x, y, y_pred, sample_weight)
        part_values = batch_sums.loss_values(
            terms, scope.losses, batch_sums.replica_rows
        )
        return batch_sums.loss(batch_sums.totals(part_values)), y_pred, True
    except NotAdditive as error:
        _warn(error)
        y_pred = call_model(model, x, training=False)
        loss = loss_of_batch(
            model,
            x,
            y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=False,
        )
        return (
            replicas.zero_without_samples(sample_count(x), loss),
            y_pred,
            False,
        )


def _warn(error):
    """Warn that a batch is trained as by `keras.Model`, with the effect."""
    warnings.warn(
        "The replicas have equal weight in this batch, as in keras.Model, "
        "also where they have unequally many samples, since: "
        f"{error}",
        stacklevel=2,
    )


gradient_modes.register("batch", Batch)
