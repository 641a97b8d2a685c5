"""The batch in microbatches: the gradient of the whole, in less memory."""

import keras

from keras_pergrad.modes import added
from keras_pergrad.modes.base import (
    GradientMode,
    Step,
    add_regularizers,
    loss_scale,
    modes,
    scaled,
)
from keras_pergrad.modes.contributions import Contributions
from keras_pergrad.modes.microbatches import sum_over


class Accumulated(GradientMode):
    """The batch in microbatches: its exact gradient, in less memory.

    Every microbatch gives the numerators and denominators of the losses and
    the gradients of the numerators; they are summed and divided once, so that
    the result is the gradient of the whole batch for every Keras reduction,
    with sample weights, masks and several outputs, however the batch splits.
    Metrics are updated microbatch by microbatch; random layers draw afresh
    for each, and BatchNormalization takes the statistics of each.

    Args:
        microbatch_size: the number of samples in a microbatch.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Accumulated(microbatch_size=64)
    """

    def __init__(self, microbatch_size=32):
        self.microbatch_size = _positive("microbatch_size", microbatch_size)

    def step(self, model, x, y, sample_weight):
        _require_plain_loss(model)
        scale = loss_scale(model.optimizer)
        parts = Contributions(model, x, scale, added.kinds(model, x))
        totals = sum_over(parts, (x, y, sample_weight), self.microbatch_size)
        gradients = add_regularizers(
            parts.gradients(totals), model.trainable_variables
        )
        return Step(parts.loss(totals), None, scaled(gradients, scale))

    def get_config(self):
        return {"microbatch_size": self.microbatch_size}


def _positive(name, value):
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return value


def _require_plain_loss(model):
    if type(model).compute_loss is not keras.Model.compute_loss:
        raise ValueError(
            f"{type(model).__name__} overrides compute_loss, so that it is "
            "not known how its loss adds up over microbatches. Put the loss "
            "into a keras.losses.Loss for compile(loss=...) or into "
            "add_loss(), or use gradient_mode='batch'."
        )


modes.register("accumulated", Accumulated)
