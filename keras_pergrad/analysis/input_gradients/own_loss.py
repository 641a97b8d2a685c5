"""Each sample's own loss: that of a batch of this sample alone."""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals import loss_fractions
from keras_pergrad.keras_internals.losses import noting_losses, total_loss
from keras_pergrad.keras_internals.model_parts import compiled_loss

#: For batches of one sample: the loss as Keras computes it.
loss_of_one = total_loss


def of_a_chunk(model, call, first):
    """Return `sum_of_losses`, if it holds for this model, or `loss_of_one`."""
    # It holds if the loss of a batch is a sum or a mean over its samples: not
    # where masks or weights are counted, or the model adds losses.
    if type(model).compute_loss is not keras.Model.compute_loss:
        return loss_of_one
    added, (x, y, sample_weight) = [], first
    with noting_losses(model, added):
        y_pred = call(model, x)
    try:
        terms = loss_fractions.evaluate(
            compiled_loss(model), y, y_pred, sample_weight
        )
    except loss_fractions.NotAdditive:
        return loss_of_one
    counted = any(term.kind == loss_fractions.DATA for term in terms)
    return loss_of_one if added or counted or not terms else sum_of_losses


def sum_of_losses(model, x, y, y_pred, sample_weight, training):
    """Return the sum of the samples' own losses."""
    del x, training
    n = tf.shape(tf.nest.flatten(y_pred)[0])[0]
    values = []
    for term in loss_fractions.evaluate(
        compiled_loss(model), y, y_pred, sample_weight
    ):
        value = term.numerator
        if term.denominator is not None:
            # The number of values of one sample.
            count = term.denominator / tf.cast(n, term.denominator.dtype)
            value /= tf.cast(count, value.dtype)
        weight = 1.0 if term.loss_weight is None else term.loss_weight
        values.append(tf.cast(value, keras.config.floatx()) * weight)
    return tf.add_n(values)
