"""The calls of layers that their rules serve, and the factors of these calls.

Only layers that have a rule are called through it, at the top level of the
forward pass; they are restored afterwards.
"""

import contextlib
import dataclasses
import functools
import inspect
import math

import keras
import tensorflow as tf

from keras_pergrad.factors.written_out import sizes_of
from keras_pergrad.keras_internals.models.parts import patched_attribute
from keras_pergrad.keras_internals.tensorflow.cudnn import loops_instead
from keras_pergrad.proof import messages
from keras_pergrad.uses.op_rules import unscaled


@dataclasses.dataclass
class RuleCall:
    """One call of a layer that its rule serves.

    Attributes:
        layer: the layer.
        rule: its `Rule`.
        ops: the ops that were created in the call, a tuple.
        inputs: what the rule needs in addition to the gradients.
        watched: the tensors whose gradients it needs.
    """

    layer: keras.layers.Layer
    rule: object
    ops: tuple
    inputs: object
    watched: list


def layer_factors(call, traced, uses, *, n, scale):
    """Yield (index of the variable, factor) by the rule of a call's layer."""
    deltas = list(map(uses.gradient_of, call.watched))
    if all(d is None for d in deltas):
        return
    dtype = call.layer.variable_dtype
    deltas = [
        unscaled(tf.zeros_like(t) if d is None else d, dtype, scale)
        for t, d in zip(call.watched, deltas)
    ]
    inputs = tf.nest.map_structure(lambda t: _cast(t, dtype), call.inputs)
    # A tensor without a layout has no samples, nor has its gradient.
    layouts = set(traced.proof.watched_layouts(call)) - {None}
    layout, *other_layouts = layouts or {None}
    if other_layouts or layout is None or not layout.leads:
        is_merged = layout is not None and not layout.axis
        if other_layouts or not is_merged or not call.rule.by_position:
            error = ValueError(messages.misplaced(call.layer))
            traced.refuse(call.layer, error)
            return
        inputs, deltas = tf.nest.map_structure(
            lambda t: _merge_positions(t, layout, n), (inputs, deltas)
        )
    seen_indices = set()
    for variable, factor in call.rule.gradients(
        call.layer, inputs, deltas[0] if len(deltas) == 1 else deltas
    ):
        k = traced.index_of(variable)
        if k is not None:
            seen_indices.add(k)
            yield k, factor
    missing = uses.claimed.get(call.ops, set()) - seen_indices
    if missing:
        paths = sorted(repr(traced.variables[k].path) for k in missing)
        message = messages.incomplete_rule(call.layer, ", ".join(paths))
        raise ValueError(message)


def _cast(tensor, dtype):
    if tf.is_tensor(tensor) and tensor.dtype.is_floating:
        return tf.cast(tensor, dtype)
    return tensor


def _merge_positions(tensor, layout, n):
    """Return (n · positions, T, ...) as (n, positions · T, ...)."""
    if not tf.is_tensor(tensor):
        return tensor
    samples_first = layout.first(tensor, n)
    sizes = sizes_of(samples_first)
    trailing = sizes[2 + layout.added_axes :]
    positions = sizes[1 : 2 + layout.added_axes]
    if all(isinstance(size, int) for size in positions):
        count = math.prod(positions)
    else:
        count = tf.reduce_prod(tf.stack(positions))
    merged = tf.reshape(samples_first, [n, count, *trailing])
    static_count = count if isinstance(count, int) else None
    merged.set_shape([None, static_count, *tensor.shape[2:]])
    return merged


def through_rule(traced, layer, rule):
    """Return the `call` of a layer that its rule serves, to be put in place.

    What it records is added to the `calls` of the `TracedStep`.
    """
    original = layer.call

    @functools.wraps(original)
    def call(*args, **kwargs):
        in_inner_graph = tf.compat.v1.get_default_graph() is not traced.graph
        # Inside another rule's call, or in the body of a loop, the ops are
        # served by that rule, or one by one.
        is_served = not (traced.in_rule_call or in_inner_graph)
        if is_served:
            args, kwargs = _first_positional(original, args, kwargs)
            reason = rule.reason_against(layer, *args, **kwargs)
            is_served = reason is None
        if not is_served:
            with loops_instead([layer]):
                return original(*args, **kwargs)
        return _record_call(
            traced, layer, rule, original=original, args=args, kwargs=kwargs
        )

    call.rule = rule
    return call


def _record_call(traced, layer, rule, *, original, args, kwargs):
    op_count = len(traced.graph.get_operations())
    watched = []

    def watch(tensor):
        # A copy, so that other reads of the tensor are not counted.
        watched.append(tf.identity(tensor))
        return watched[-1]

    traced.in_rule_call = True
    try:
        if rule.forward is None:
            outputs, inputs = _linear(
                layer, original, args, kwargs=kwargs, watch=watch
            )
        else:
            outputs, inputs = rule.forward(
                layer, original, watch, *args, **kwargs
            )
    finally:
        traced.in_rule_call = False
    ops = tuple(traced.graph.get_operations()[op_count:])
    traced.calls.append(
        RuleCall(layer, rule, ops, inputs=inputs, watched=watched)
    )
    if rule.forward is None:
        # Not among `ops`: the activation may be a layer with weights.
        activation = getattr(layer, "activation", None)
        return outputs if activation is None else activation(outputs)
    return outputs


def _linear(layer, original, args, *, kwargs, watch):
    """Call the layer itself, without its activation."""
    with contextlib.ExitStack() as stack:
        if getattr(layer, "activation", None) is not None:
            linear = keras.activations.linear
            stack.enter_context(patched_attribute(layer, "activation", linear))
        outputs = watch(original(*args, **kwargs))
    return outputs, args[0] if args else next(iter(kwargs.values()))


def _first_positional(call, args, kwargs):
    """Return the arguments, the first one positional, as rules expect it."""
    name = next(iter(inspect.signature(call).parameters), None)
    if args or name not in kwargs:
        return args, kwargs
    return (kwargs[name],), {k: v for k, v in kwargs.items() if k != name}
