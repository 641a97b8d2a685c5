"""Gradients of one's own that weights get, by `tf.custom_gradient`.

The part of each sample in them is found with the other samples blanked, and
weighted before it goes through. So they must be linear in what they are given.
"""

import dataclasses

import tensorflow as tf

from keras_pergrad.keras_internals.gradient_helpers import (
    has_own_gradient,
    op_gradients,
)
from keras_pergrad.keras_internals.graph_nodes import Definitions
from keras_pergrad.samples.op_facts import FACTS
from keras_pergrad.samples.types.tensor_types import Free, Total

#: What `tf.custom_gradient` leaves in a graph.
OWN = "IdentityN"
_SUMS = {"Add", "AddN", "AddV2", "Cast", "Identity", "Neg", "Sub"}
#: Gradients that are zero.
_ZEROS = {"ZerosLike", "Zeros"}


@dataclasses.dataclass
class OwnGradient:
    """The gradients of the weights of a candidate.

    Attributes:
        candidate: the `Candidate`.
        given: the gradients of its outputs.
        gradients: those of its weights, from these; of a sum what it adds.
    """

    candidate: object
    given: list
    gradients: list


def own_gradients(candidates, at_ops, graph):
    """Return an `OwnGradient` for each candidate that has, or calls, one."""
    definitions, result = Definitions(graph), []
    for one, deltas in zip(candidates, at_ops):
        if not _is_own(one.op, definitions):
            continue
        pairs = [
            (t, tf.identity(d))
            for t, d in zip(one.outputs, deltas)
            if d is not None and t.op is one.op
        ]
        if not pairs:
            continue
        outputs, given = map(list, zip(*pairs))
        gradients = op_gradients(
            outputs,
            [one.op.inputs[k] for k in one.weights],
            given,
            one.op.graph,
            one.op.inputs,
        )
        gradients = [
            tf.convert_to_tensor(g) for g in gradients if g is not None
        ]
        gradients = [part for g in gradients for part in _addends(g, given)]
        result.append(OwnGradient(one, given, gradients))
    return result


def is_linear(kind, gradient):
    """Whether a gradient of this type is linear in what it was given."""
    if isinstance(kind, Free):
        return gradient.op.type in _ZEROS or _is_zero(gradient)
    return isinstance(kind, Total)


def _addends(tensor, given):
    """Return the tensors of which this one is the sum or the difference."""
    if tensor.op.type not in _SUMS or any(tensor is one for one in given):
        return [tensor]
    return [one for t in tensor.op.inputs for one in _addends(t, given)]


def _is_zero(tensor):
    value = tf.get_static_value(tensor)
    return value is not None and not value.any()


def _is_own(op, definitions):
    if op.type == OWN:
        return has_own_gradient(op.node_def.attr)
    if not FACTS[op.type].has_functions:
        return False
    return _calls_own(op.node_def, definitions, set())


def _calls_own(node, definitions, seen):
    """Whether a function that a node calls, and so on, has an own gradient."""
    for value in node.attr.values():
        functions = [value.func, *value.list.func]
        for name in (f.name for f in functions if f.name):
            if name in seen:
                continue
            seen.add(name)
            nodes = definitions.nodes(name)
            for inner in nodes.by_name.values() if nodes else ():
                if inner.op == OWN and has_own_gradient(inner.attr):
                    return True
                if _calls_own(inner, definitions, seen):
                    return True
    return False
