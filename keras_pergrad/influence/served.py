"""Refusals of losses that are no mean over the samples of their own."""

import keras

from keras_pergrad.data_passes import prepare
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
