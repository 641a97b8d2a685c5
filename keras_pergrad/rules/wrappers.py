"""The rule of TimeDistributed, where time is one more axis of positions."""

import keras

from keras_pergrad.patching import attribute
from keras_pergrad.rules.basic import dense
from keras_pergrad.rules.registry import register_rule


def _unsupported(layer, *args, **kwargs):
    """Only Dense treats the steps as it treats any other positions."""
    child = layer.layer
    if not isinstance(child, keras.layers.Dense):
        return f"it wraps a {type(child).__name__}"
    if type(child).call is not keras.layers.Dense.call:
        return "its Dense has a `call` of its own"
    if getattr(child, "quantization_mode", None):
        return "its layer is quantized"
    return None


def _forward(layer, call, watch, inputs, *args, **kwargs):
    """All steps at once: Dense acts on the last axis of any rank."""
    child = layer.layer
    with attribute(child, "activation", None):
        outputs = watch(child.call(inputs))
    if child.activation is not None:
        outputs = child.activation(outputs)
    return outputs, inputs


@register_rule(
    keras.layers.TimeDistributed, forward=_forward, unsupported=_unsupported
)
def time_distributed(layer, inputs, dz):
    """What the rule of Dense gives, the steps among the positions."""
    yield from dense(layer.layer, inputs, dz)
