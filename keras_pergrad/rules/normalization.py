"""Rules of normalisation layers and of PReLU: scales and offsets.

The layers run by an equal forward of their own where that shows the
normalised input x̂: then dγ = Σ x̂·dz and dβ = Σ dz.
"""

import keras
import tensorflow as tf

from keras_pergrad.factors import Full
from keras_pergrad.rules.registry import register_rule


def _wide(inputs):
    """Half precision overflows in the moments; Keras widens it, too."""
    narrow = inputs.dtype.size < 4
    return tf.cast(inputs, tf.float32) if narrow else inputs


def _reduced(gradient, axes, shape):
    """Contributions of a variable that is broadcast over all but `axes`."""
    others = [a for a in range(1, gradient.shape.rank) if a not in axes]
    if others:
        gradient = tf.reduce_sum(gradient, others)
    return Full(tf.reshape(gradient, [-1, *shape]))


def _positive(axes, rank):
    axes = [axes] if isinstance(axes, int) else axes
    return [a % rank for a in axes]


def _broadcast(variable, axes, like):
    shape = [like.shape[a] if a in axes else 1 for a in range(like.shape.rank)]
    value = tf.cast(tf.convert_to_tensor(variable), like.dtype)
    return tf.reshape(value, shape)


def _mixes_samples(layer, inputs, *args, **kwargs):
    if 0 in _positive(layer.axis, len(inputs.shape)):
        return "it normalises over the axis of the samples"
    return None


def _affine(layer, normalized, axes, gamma, beta, watch):
    """γ·x̂ + β, watched, with what the rules below need."""
    outputs = normalized
    if gamma is not None:
        outputs *= _broadcast(gamma, axes, normalized)
    if beta is not None:
        outputs += _broadcast(beta, axes, normalized)
    outputs = watch(tf.cast(outputs, layer.compute_dtype))
    return outputs, (normalized, axes)


def _affine_gradients(gamma, beta, inputs, dz):
    normalized, axes = inputs
    if gamma is not None:
        yield gamma, _reduced(normalized * dz, axes, gamma.shape)
    if beta is not None:
        yield beta, _reduced(dz, axes, beta.shape)


def _layer_forward(layer, call, watch, inputs):
    axes = _positive(layer.axis, inputs.shape.rank)
    x = _wide(inputs)
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    centred = x if layer.rms_scaling else x - mean
    normalized = centred * tf.math.rsqrt(variance + layer.epsilon)
    return _affine(layer, normalized, axes, layer.gamma, layer.beta, watch)


@register_rule(
    keras.layers.LayerNormalization,
    forward=_layer_forward,
    unsupported=_mixes_samples,
)
def layer_normalization(layer, inputs, dz):
    """gamma: sum over positions of x̂·dz; beta: sum over positions of dz."""
    yield from _affine_gradients(layer.gamma, layer.beta, inputs, dz)


def _rms_forward(layer, call, watch, inputs):
    axes = _positive(layer.axis, inputs.shape.rank)
    x = _wide(inputs)
    square = tf.reduce_mean(tf.square(x), axes, keepdims=True)
    normalized = x * tf.math.rsqrt(square + layer.epsilon)
    return _affine(layer, normalized, axes, layer.scale, None, watch)


def _rms_unsupported(layer, inputs, *args, **kwargs):
    # Keras aligns the scale with the last axes, whatever it normalises over.
    rank = len(inputs.shape)
    axes = sorted(_positive(layer.axis, rank))
    if axes != list(range(rank - len(axes), rank)):
        return "it does not normalise over the last axes"
    return _mixes_samples(layer, inputs)


def rms_normalization(layer, inputs, dz):
    """scale: sum over positions of x̂·dz."""
    yield from _affine_gradients(layer.scale, None, inputs, dz)


# Keras has it from 3.9 on.
if hasattr(keras.layers, "RMSNormalization"):
    register_rule(
        keras.layers.RMSNormalization,
        forward=_rms_forward,
        unsupported=_rms_unsupported,
    )(rms_normalization)


def _group_forward(layer, call, watch, inputs):
    """Channels (c,) are split into (groups, c / groups) at their place."""
    axis = layer.axis % inputs.shape.rank
    x = _wide(inputs)
    shape = tf.shape(x)
    channels = inputs.shape[axis]
    split = [layer.groups, channels // layer.groups]
    grouped = tf.reshape(
        x, tf.concat([shape[:axis], split, shape[axis + 1 :]], 0)
    )
    rest = [a for a in range(1, inputs.shape.rank + 1) if a != axis]
    mean, variance = tf.nn.moments(grouped, rest, keepdims=True)
    normalized = (grouped - mean) * tf.math.rsqrt(variance + layer.epsilon)
    normalized = tf.ensure_shape(tf.reshape(normalized, shape), inputs.shape)
    return _affine(layer, normalized, [axis], layer.gamma, layer.beta, watch)


@register_rule(
    keras.layers.GroupNormalization,
    forward=_group_forward,
    unsupported=_mixes_samples,
)
def group_normalization(layer, inputs, dz):
    """gamma: sum over positions of x̂·dz; beta: sum over positions of dz."""
    yield from _affine_gradients(layer.gamma, layer.beta, inputs, dz)


@register_rule(keras.layers.BatchNormalization, unsupported=_mixes_samples)
def batch_normalization(layer, inputs, dz):
    """gamma: Σ x̂·dz; beta: Σ dz; x̂ by the moving statistics.

    Calls that use the batch's own statistics never come here: they are
    refused by name.
    """
    axes = _positive(layer.axis, inputs.shape.rank)
    if layer.scale:
        variance = _broadcast(layer.moving_variance, axes, inputs)
        normalized = inputs - _broadcast(layer.moving_mean, axes, inputs)
        normalized *= tf.math.rsqrt(variance + layer.epsilon)
        yield layer.gamma, _reduced(normalized * dz, axes, layer.gamma.shape)
    if layer.center:
        yield layer.beta, _reduced(dz, axes, layer.beta.shape)


@register_rule(keras.layers.PReLU)
def prelu(layer, inputs, dz):
    """alpha: min(x, 0)·dz, summed over the shared axes."""
    shared = [a % inputs.shape.rank for a in layer.shared_axes or []]
    axes = [a for a in range(1, inputs.shape.rank) if a not in shared]
    slopes = tf.minimum(inputs, tf.zeros([], inputs.dtype)) * dz
    yield layer.alpha, _reduced(slopes, axes, layer.alpha.shape)
