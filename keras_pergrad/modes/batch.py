"""The ordinary batch gradient."""

import tensorflow as tf

from keras_pergrad.losses import total_loss
from keras_pergrad.modes.base import GradientMode, Step, call_model, modes


class Batch(GradientMode):
    """The ordinary batch gradient: exactly what `keras.Model` does.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Batch()
    """

    def step(self, model, x, y, sample_weight):
        with tf.GradientTape() as tape:
            y_pred = call_model(model, x)
            loss = total_loss(model, x, y, y_pred, sample_weight)
            target = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(target, model.trainable_variables)
        return Step(loss, y_pred, gradients)


modes.register("batch", Batch)
