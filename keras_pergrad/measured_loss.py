"""The loss whose gradient is measured, if the model has one.

Private name in use: `Model._compile_loss`.
"""

import keras

from keras_pergrad.losses import additional_losses, total_loss


class MissingLoss(ValueError):
    """There is no loss to take a gradient of."""


def measured_loss(model, x, y, y_pred, sample_weight):
    """The scalar loss of a batch, after the forward pass.

    Raises:
        MissingLoss: none was compiled, and the model adds none by itself.
    """
    if (
        getattr(model, "_compile_loss", None) is None
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
