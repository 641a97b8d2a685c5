"""The rule of TimeDistributed: its layer's rule, with steps as positions."""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.factors.fold import fold
from keras_pergrad.patching import attribute
from keras_pergrad.rules.registry import find_rule, register_rule


def _unsupported(layer, inputs, training=None, mask=None):
    """Why the steps cannot be taken as a larger batch of the layer inside."""
    child = layer.layer
    name = type(child).__name__
    rule = find_rule(child)
    if rule is None:
        return f"it wraps a {name}, which has no rule"
    if rule.forward is not None:
        return f"it wraps a {name}, whose rule has a forward pass of its own"
    if isinstance(child, keras.layers.BatchNormalization):
        return "it wraps a BatchNormalization"
    if isinstance(getattr(child, "activation", None), keras.Layer):
        return f"the activation of its {name} is a layer"
    if child._call_has_mask_arg and mask is not None:
        return f"its {name} takes a mask"
    if not inputs.shape[1:].is_fully_defined():
        return f"the input's shape {inputs.shape} is not known when tracing"
    return rule.reason_against(child, _flat(inputs))


def _flat(tensor):
    """(n, t, ...) as (n·t, ...)."""
    return tf.reshape(tensor, [-1, *tensor.shape[2:]])


def _forward(layer, call, watch, inputs, training=None, mask=None):
    """All steps in one call of the layer, as so many samples."""
    del call, mask
    child, steps = layer.layer, inputs.shape[1]
    kwargs = {"training": training} if child._call_has_training_arg else {}
    activation = getattr(child, "activation", None)
    with contextlib.ExitStack() as stack:
        if activation is not None:
            stack.enter_context(attribute(child, "activation", None))
        outputs = child.call(_flat(inputs), **kwargs)
    shape = outputs.shape[1:]
    outputs = watch(tf.reshape(outputs, [-1, steps, *shape]))
    if activation is not None:
        outputs = activation(_flat(outputs))
        outputs = tf.reshape(outputs, [-1, steps, *outputs.shape[1:]])
    return outputs, inputs


@register_rule(
    keras.layers.TimeDistributed, forward=_forward, unsupported=_unsupported
)
def time_distributed(layer, inputs, dz):
    """What the rule of the layer inside gives, added over the steps."""
    child, steps = layer.layer, inputs.shape[1]
    found = find_rule(child).gradients(child, _flat(inputs), _flat(dz))
    for variable, factor in found:
        yield variable, fold(factor, steps)
