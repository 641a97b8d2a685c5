"""A call's rule or the fallback, applied to what the tape recorded of it."""

import tensorflow as tf

from keras_pergrad.rules import fallback


def applied(call, variables, dz, scale):
    """Yields (variable, factor) for what one call contributes.

    Args:
        call: the recorded `Call`.
        variables: the model's trainable variables.
        dz: the gradients of what was watched in it; None where the loss does
            not depend on it.
        scale: the factor by which the loss was multiplied, or None.

    Raises:
        ValueError: the rule leaves out a variable that the call reads.
    """
    if call.rule is None:
        read = [v for v in variables if id(v) in call.accessed]
        yield from fallback.gradients(call.recorded, read, dz, scale)
        return
    dtype = call.layer.variable_dtype
    dz = [
        _prepare(tf.zeros_like(t) if g is None else g, dtype, scale)
        for t, g in zip(call.watched, dz)
    ]
    inputs = tf.nest.map_structure(lambda t: _cast(t, dtype), call.inputs)
    served = set()
    for variable, factor in call.rule.gradients(
        call.layer, inputs, dz[0] if len(dz) == 1 else dz
    ):
        served.add(id(variable))
        yield variable, factor
    left = call.accessed - served
    if left:
        paths = sorted(v.path for v in variables if id(v) in left)
        raise ValueError(
            f"layer {call.layer.name!r} ({type(call.layer).__name__}) "
            f"reads {', '.join(map(repr, paths))}, for which its rule gives "
            "no gradient. Let the rule yield these variables, too, or "
            "subclass the layer with a `call` of its own, which the generic "
            "fallback serves."
        )


def _prepare(gradient, dtype, scale):
    gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
    return gradient if scale is None else gradient / tf.cast(scale, dtype)


def _cast(tensor, dtype):
    if tf.is_tensor(tensor) and tensor.dtype.is_floating:
        return tf.cast(tensor, dtype)
    return tensor
