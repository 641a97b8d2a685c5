"""The ordinary batch gradient."""

from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.losses import total_loss
from keras_pergrad.modes import replica_step
from keras_pergrad.modes.base import (
    GradientMode,
    Step,
    call_model,
    modes,
    scaled,
)
from keras_pergrad.modes.microbatch_sums import times


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

    def step(self, model, x, y, sample_weight):
        if replicas.several():
            try:
                return replica_step.step(self, model, x, y, sample_weight)
            except replica_step.NotAdditive as error:
                replica_step.warn(error)
        with tf.GradientTape() as tape:
            y_pred = call_model(model, x)
            loss = total_loss(model, x, y, y_pred, sample_weight)
            target = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(target, model.trainable_variables)
        # A mean over no samples is NaN.
        samples = tf.shape(first_tensor(x))[0]
        loss, gradients = replicas.present(samples, (loss, gradients))
        return Step(loss, y_pred, gradients)

    def weighted_sum(self, model, x, part, scale):
        """Do as `Vectorized.weighted_sum`, without per-sample gradients."""
        with tf.GradientTape() as tape:
            with replica_step.Postponed() as scope:
                y_pred = call_model(model, x)
            scope.assign(tf.shape(first_tensor(x))[0])
            target: Any = times(part.loss(y_pred, scope.losses), scale)
        gradients = tape.gradient(target, model.trainable_variables)
        if scale is not None:
            scale = 1 / scale
        gradients = [
            None if g is None else tf.convert_to_tensor(g) for g in gradients
        ]
        return y_pred, scaled(gradients, scale), None


modes.register("batch", Batch)
