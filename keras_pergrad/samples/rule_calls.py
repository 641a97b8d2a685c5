"""Calls of layers that have a rule of their own, as recurrent layers do."""

import dataclasses
import math

import keras
import tensorflow as tf

from keras_pergrad.samples import messages
from keras_pergrad.samples.layout import sizes_of
from keras_pergrad.samples.op_rules import unscaled


@dataclasses.dataclass
class RuleCall:
    """One call of a layer that its rule serves.

    Attributes:
        layer: the layer.
        rule: its `Rule`.
        ops: the ops that were created in the call, a tuple.
        inputs: what the rule needs besides the gradients.
        watched: the tensors whose gradients it needs.
    """

    layer: keras.layers.Layer
    rule: object
    ops: tuple
    inputs: object
    watched: list


def factors_of(call, traced, deltas, layouts, n, scale, uses):
    """Yield (index of the variable, factor) by the rule of a call's layer."""
    if all(d is None for d in deltas):
        return
    dtype = call.layer.variable_dtype
    deltas = [
        unscaled(tf.zeros_like(t) if d is None else d, dtype, scale)
        for t, d in zip(call.watched, deltas)
    ]
    inputs = tf.nest.map_structure(lambda t: _cast(t, dtype), call.inputs)
    # A tensor without a layout has no samples, nor has its gradient.
    layout, *others = set(layouts) - {None} or {None}
    if others or layout is None or not layout.leads:
        merged = layout is not None and not layout.axis
        if others or not merged or not call.rule.by_position:
            error = ValueError(messages.misplaced(call.layer))
            traced.refuse(call.layer, error)
            return
        inputs, deltas = tf.nest.map_structure(
            lambda t: _beside(t, layout, n), (inputs, deltas)
        )
    known = {id(v): k for k, v in enumerate(traced.variables)}
    served = set()
    for variable, factor in call.rule.gradients(
        call.layer, inputs, deltas[0] if len(deltas) == 1 else deltas
    ):
        k = known.get(id(variable))
        if k is not None:
            served.add(k)
            yield k, factor
    left = uses.claimed.get(call.ops, set()) - served
    if left:
        paths = sorted(repr(traced.variables[k].path) for k in left)
        text = messages.incomplete_rule(call.layer, ", ".join(paths))
        raise ValueError(text)


def _cast(tensor, dtype):
    if tf.is_tensor(tensor) and tensor.dtype.is_floating:
        return tf.cast(tensor, dtype)
    return tensor


def _beside(tensor, layout, n):
    """Return (n · positions, T, …) as (n, positions · T, …)."""
    if not tf.is_tensor(tensor):
        return tensor
    first = layout.first(tensor, n)
    added, rest = layout.added, sizes_of(first)[2 + layout.added :]
    positions = sizes_of(first)[1 : 2 + added]
    if all(isinstance(size, int) for size in positions):
        count = math.prod(positions)
    else:
        count = tf.reduce_prod(tf.stack(positions))
    merged = tf.reshape(first, [n, count, *rest])
    known = count if isinstance(count, int) else None
    merged.set_shape([None, known, *tensor.shape[2:]])
    return merged
