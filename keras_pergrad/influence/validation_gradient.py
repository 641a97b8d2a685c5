"""The slope of the loss of validation data, within a training step."""

import tensorflow as tf

from keras_pergrad.common.batches import map_tensors
from keras_pergrad.factors import wide
from keras_pergrad.keras_internals.losses.compiled import no_running_means
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.losses.regularizers import without_gradients
from keras_pergrad.keras_internals.models.parts import call_model, compiled_loss
from keras_pergrad.keras_internals.state.model import (
    assigning_ops,
    twice_differentiable,
)
from keras_pergrad.modes.one_step import loss_scale


def loss_in_inference(model, batch):
    """Return the loss of `evaluate`, all penalties included."""
    x, y, sample_weight = batch
    return total_loss(
        model,
        x,
        y,
        y_pred=call_model(model, x, training=False),
        sample_weight=sample_weight,
        training=False,
    )


class ValidationGradient:
    """The gradient of the validation loss, without weight regularisers.

    Layers act as in inference: it is the loss that `evaluate` reports.
    """

    def __init__(self, model, batch, variables):
        self.model, self.batch, self.variables = model, batch, variables

    def gradient(self):
        """Return the gradient, a dense tensor for each variable."""
        with tf.GradientTape() as tape:
            loss = self._loss()
        return self._unscaled(tape.gradient(loss, self._values()))

    def gradient_and_product(self, directions):
        """Return the gradient, and the Hessian times a direction.

        The product is the gradient of ⟨gradient, direction⟩ (Pearlmutter).
        """
        with twice_differentiable():
            loss = self._loss()
        gradients = map_tensors(
            tf.convert_to_tensor, tf.gradients(loss, self._values())
        )
        terms = [
            tf.reduce_sum(g * tf.cast(tf.stop_gradient(d), g.dtype))
            for g, d in zip(gradients, directions)
            if g is not None
        ]
        dot = tf.add_n(terms) if terms else tf.zeros([], loss.dtype)
        products = tf.gradients(dot, self._values())
        return self._unscaled(gradients), self._unscaled(products)

    def _loss(self):
        graph = tf.compat.v1.get_default_graph()
        op_count = len(graph.get_operations())
        compiled = compiled_loss(self.model)
        # Without Keras's running means of the losses of several outputs.
        with without_gradients(self.variables), no_running_means(compiled):
            loss = loss_in_inference(self.model, self.batch)
        for op in assigning_ops(graph.get_operations()[op_count:]):
            raise ValueError(
                "Sample values call the model on the validation data in each "
                "step, which must leave it as it is. Expected a model without "
                "a state that a call with training=False changes. Received: "
                f"the op {op.name!r} of type {op.type}, which assigns a "
                "variable. Such as stateful=True in a recurrent layer: leave "
                "it out."
            )
        scale = loss_scale(self.model.optimizer)
        return loss if scale is None else loss * tf.cast(scale, loss.dtype)

    def _values(self):
        return [v.value for v in self.variables]

    def _unscaled(self, gradients):
        scale = loss_scale(self.model.optimizer)
        gradients = [
            tf.zeros(v.shape, wide(v.value).dtype) if g is None else wide(g)
            for v, g in zip(
                self.variables, map_tensors(tf.convert_to_tensor, gradients)
            )
        ]
        if scale is None:
            return gradients
        return [g / tf.cast(scale, g.dtype) for g in gradients]
