"""Refusals of losses that are no mean over the samples of their own."""

import keras

from keras_pergrad.data_passes import prepare
from keras_pergrad.influence.argument_checks import comes_in_batches
from keras_pergrad.influence.same_order import SameOrder
from keras_pergrad.keras_internals import own_losses
from keras_pergrad.keras_internals.data_batches import batches_of
from keras_pergrad.keras_internals.inspection_checks import (
    require_compiled,
    require_targets,
)
from keras_pergrad.keras_internals.model_parts import compiled_loss, entries_of


def require_built(model):
    """Refuse a model without weights, or without a loss."""
    require_compiled(model)
    if not model.built:
        raise ValueError(
            f"Expected a built model, whose weights are those of the store. "
            f"Received: {model.name!r}, which has none yet: call it on a "
            "batch, or model.build(...)."
        )


def require_served(model, batch):
    """Refuse a model whose loss is no mean over samples; build it."""
    require_compiled(model)
    require_targets(model, batch)
    prepare(model, batch)
    for entry in entries_of(compiled_loss(model)):
        reduction = getattr(entry.loss, "reduction", None)
        if isinstance(entry.loss, keras.losses.Loss) and reduction == "sum":
            raise ValueError(
                f"Loss {entry.loss.name!r} adds up over the batch "
                "(reduction='sum'), so that a sample's gradient depends on "
                "the size of its batch. Expected a mean over the samples: "
                "compile with reduction='sum_over_batch_size'."
            )
    if own_losses.over_the_batch(model, batch) != own_losses.MEAN:
        raise ValueError(
            f"The loss of model {model.name!r} adds up over the batch: of a "
            "batch with every sample twice it is another one, so that a "
            "sample's gradient depends on the size of its batch. Expected a "
            "mean over the samples: ops.mean in place of ops.sum where a loss "
            "function or `add_loss` reduces the batch; or a loss function "
            "that returns one value for each sample."
        )


def tests_of(model, x, y, sample_weight):
    """Return a function of a batch size: the batches of test samples.

    A data set has its own size. Where a loss divides by what a batch holds,
    each test sample is a batch of its own, whatever the others are.
    """
    if comes_in_batches(x):
        own = SameOrder(batches_of(x, y, sample_weight), "x_test")
        alone = not own_losses.is_mean_of_own(model, next(iter(own)))
        return lambda size: _OneByOne(own) if alone else own

    def batches(size):
        found = batches_of(x, y, sample_weight, size)
        if own_losses.is_mean_of_own(model, next(iter(found))):
            return found
        return batches_of(x, y, sample_weight, 1)

    return batches


class _OneByOne:
    """Batches of one sample each."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        for x, y, sample_weight in self._batches:
            yield from batches_of(x, y, sample_weight, 1)
