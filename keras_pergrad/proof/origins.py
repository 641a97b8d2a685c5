"""The layer, the loss or the own gradient from which an op of a step comes."""

import dataclasses
import re

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.gradients import (
    has_own_gradient,
    op_gradients,
)
from keras_pergrad.keras_internals.graphs.nodes import Definitions
from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.proof import messages
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.tensor_types import Free, Total

_GRADIENT = re.compile(r"(?:^|/)gradients(?:_\d+)?/(.+)_grad/")


class OpOrigin:
    """Where ops of a step come from.

    `scopes` are the name scopes in which layers were called, `backward` the
    names of the ops that the backward pass has added, `calls` those of loops
    and other calls of functions, in which no scope was seen.
    """

    def __init__(self, model, loss_ops, scopes, backward, calls):
        self._model, self._scopes = model, scopes
        self._backward, self._calls = backward, calls
        self._layers = {layer.name: layer for layer in layers_of(model)}
        self._loss_ops = {op.name for op in loss_ops}

    def layer(self, name):
        """Return the layer in whose call an op was made, or None."""
        for names, layer in self._around(name):
            layer = self._layers[names[0]] if layer is None else layer
            if layer is not self._model:
                return layer
        return None

    def caller(self, name):
        """Return the innermost layer that was seen to make an op, or None.

        No scope that only has the name of a layer counts.
        """
        parts = self.forward(name).split("/")[:-1]
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                return layer
        return None

    def around(self, name):
        """Yield for each call around an op the layers that it may be of.

        The innermost comes first. Inside of a loop, where no call was seen,
        the scopes tell by their names which of the layers within the layer
        that has the loop it is; layer "a" may be in "a_1": Keras opens a scope
        twice.
        """
        name = self.forward(name)
        if self.caller(name) is not None:
            for names, _ in self._around(name):
                yield names

    def _named(self, name):
        """Return the names by which scopes around an op tell a layer."""
        caller = self.caller(name)
        if caller is None:
            return set(self._layers)
        if self._has_prefix(name, self._calls):
            return {one.name for one in layers_of(caller)}
        return set()

    def _has_prefix(self, name, names):
        parts = name.split("/")
        return any("/".join(parts[: k + 1]) in names for k in range(len(parts)))

    def forward(self, name):
        """Return the name of the op to which one of the backward pass belongs.

        That of another op stays, whatever its scopes are called.
        """
        if self._has_prefix(name, self._backward):
            while (match := _GRADIENT.search(name)) is not None:
                name = match.group(1) + "/"
        return name

    def _around(self, name):
        """Yield (names, layer or None), innermost first."""
        name = self.forward(name)
        parts, known = name.split("/")[:-1], self._named(name)
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                yield [layer.name], layer
                continue
            part = parts[k - 1]
            names = dict.fromkeys([part, re.sub(r"_\d+$", "", part)])
            names = [one for one in names if one in known]
            if names:
                yield names, None

    def is_of_loss(self, name):
        """Whether an op is one of the loss, or of its gradient."""
        return self._has_prefix(self.forward(name), self._loss_ops)

    def refusal(self, bad):
        """Return (layer or None, error) for a `Mixed`."""
        model, layer = self._model, self.layer(bad.op_name)
        if bad.untyped:
            return layer, ValueError(messages.untyped(model, layer, bad))
        if layer is None and self.is_of_loss(bad.op_name):
            return None, ValueError(messages.loss_couples(model, bad))
        return layer, ValueError(messages.mixes(model, layer, bad))


# Gradients of one's own that weights get, by `tf.custom_gradient`.
#
# The part of each sample in them is found with the other samples blanked, and
# weighted before it goes through. So they must be linear in what they are
# given.


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
