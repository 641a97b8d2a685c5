"""The loss whose gradients are measured."""

import keras

from keras_pergrad.keras_internals.losses import additional_losses, total_loss
from keras_pergrad.keras_internals.model_parts import compiled_loss


class MissingLoss(ValueError):
    """There is no loss to take a gradient of."""


def measured_loss(model, x, y, y_pred, sample_weight, training=True):
    """Return the scalar loss of a batch, after the forward pass."""
    del training
    if (
        compiled_loss(model) is None
        and not additional_losses(model)
        and type(model).compute_loss is keras.Model.compute_loss
    ):
        raise MissingLoss(
            f"Model {model.name!r} was compiled without a loss, and that of a "
            "`train_step` of its own is not seen from outside. Expected "
            "compile(loss=...) with the loss that it is trained by, or a "
            "`compute_loss` or `add_loss` of the model's own. Received: no "
            "loss"
        )
    return total_loss(model, x, y, y_pred, sample_weight)
