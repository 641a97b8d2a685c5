"""Weights that an optimizer overwrites with their gradient, as of float8."""

from keras_pergrad.common import refusal_messages
from keras_pergrad.keras_internals.models.parts import layers_of


def is_overwritten(variable):
    """Whether the optimizer overwrites a variable with its gradient."""
    return getattr(variable, "overwrite_with_gradient", False)


def overwritten_weights(model):
    """Yield (layer, error) for layers with weights that are overwritten."""
    refused = []
    for variable in filter(is_overwritten, model.trainable_variables):
        layer = min(
            (
                layer
                for layer in layers_of(model)
                if any(v is variable for v in layer.trainable_variables)
            ),
            key=lambda layer: len(layer.variables),
        )
        if not any(layer is other for other in refused):
            refused.append(layer)
            text = refusal_messages.overwritten_weight(layer, variable)
            yield layer, ValueError(text)


def require_none_overwritten(model):
    """Refuse weights that are overwritten: samples have no gradients there."""
    for _, error in overwritten_weights(model):
        raise error
