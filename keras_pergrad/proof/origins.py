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
from keras_pergrad.proof.op_facts import FACTS, LINEAR, SUMS, has
from keras_pergrad.proof.source_lines import source_line
from keras_pergrad.proof.static_numbers import is_zero
from keras_pergrad.proof.tensor_types import Free, Total

_GRADIENT = re.compile(r"(?:^|/)gradients(?:_\d+)?/(.+)_grad/")


class OpOrigin:
    """Where ops of a step come from.

    Args:
        model: the model.
        loss_ops: the ops of the loss.
        scopes: the name scope of each call of a layer → the layer.
        backward: the names of the ops that the backward pass has added.
        calls: the names of loops and other calls of functions. The scopes
            inside of them were not seen.
        operations: the ops of the step.
    """

    def __init__(self, model, loss_ops, scopes, *, backward, calls, operations):
        self._model, self._scopes = model, scopes
        self._operations = operations
        self._backward, self._calls = backward, calls
        self._layers = {layer.name: layer for layer in layers_of(model)}
        self._loss_ops = {op.name for op in loss_ops}

    def layer(self, name):
        """Return the layer in whose call an op was made, or None."""
        for names, layer in self._layers_around(name):
            layer = self._layers[names[0]] if layer is None else layer
            if layer is not self._model:
                return layer
        return None

    def caller(self, name):
        """Return the innermost layer that was seen to make an op, or None.

        No scope that only has the name of a layer counts.
        """
        parts = self.forward_name(name).split("/")[:-1]
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                return layer
        return None

    def layer_names_around(self, name):
        """Yield the names of layers that each call around an op may be of.

        The innermost call comes first. Inside of a loop no call was seen.
        There the names of the scopes tell which of the layers within the
        layer that has the loop it may be. Layer "a" may have the scope "a_1",
        as Keras opens a scope twice.
        """
        name = self.forward_name(name)
        if self.caller(name) is not None:
            for names, _ in self._layers_around(name):
                yield names

    def _layer_names(self, name):
        """Return the names by which scopes around an op tell a layer."""
        caller = self.caller(name)
        if caller is None:
            return set(self._layers)
        if self._has_prefix(name, self._calls):
            return {layer.name for layer in layers_of(caller)}
        return set()

    def _has_prefix(self, name, names):
        parts = name.split("/")
        return any("/".join(parts[: k + 1]) in names for k in range(len(parts)))

    def forward_name(self, name):
        """Return the name of the forward op whose gradient an op computes.

        The name of an op of the forward pass stays, whatever its scopes are
        called.
        """
        if self._has_prefix(name, self._backward):
            while (match := _GRADIENT.search(name)) is not None:
                name = match.group(1) + "/"
        return name

    def _layers_around(self, name):
        """Yield (names, layer or None), innermost first."""
        name = self.forward_name(name)
        parts, layer_names = name.split("/")[:-1], self._layer_names(name)
        for k in range(len(parts), 0, -1):
            layer = self._scopes.get("/".join(parts[:k]))
            if layer is not None:
                yield [layer.name], layer
                continue
            part = parts[k - 1]
            names = dict.fromkeys([part, re.sub(r"_\d+$", "", part)])
            names = [
                candidate for candidate in names if candidate in layer_names
            ]
            if names:
                yield names, None

    def is_of_loss(self, name):
        """Whether an op is one of the loss, or of its gradient."""
        return self._has_prefix(self.forward_name(name), self._loss_ops)

    def refusal(self, mixed):
        """Return (layer or None, error) for a `Mixed`."""
        model, layer = self._model, self.layer(mixed.op_name)
        if mixed.untyped:
            text = messages.untyped_op(model, layer, mixed)
        elif layer is None and self.is_of_loss(mixed.op_name):
            text = messages.loss_couples(model, mixed)
        else:
            text = messages.mixing_op(model, layer, mixed)
        if self._is_for_ctc(mixed.op_name):
            text = f"{text} {messages.CTC}"
        return layer, self.error(text, mixed.op_name)

    def error(self, text, name):
        """Return an error that shows the user's own line that made an op."""
        line = None
        if self._operations:
            graph = self._operations[0].graph
            line = source_line(graph, self.forward_name(name))
        shown = "" if line is None else f" The op is made in {line}"
        return ValueError(f"{text}{shown}")

    def _is_for_ctc(self, name):
        """Whether an op is a CTC loss, or makes the labels of one."""
        losses = [op for op in self._operations if _is_ctc_loss(op)]
        names = {op.name for op in losses}
        # The logits, behind which are the layers, are no whole numbers.
        pending = [
            t.op for op in losses for t in op.inputs if t.dtype.is_integer
        ]
        while pending:
            op = pending.pop()
            if op.name not in names:
                names.add(op.name)
                pending += [t.op for t in op.inputs]
        return self._has_prefix(self.forward_name(name), names)


_CTC_LOSSES = ("CTCLoss", "CTCLossV2")


def _is_ctc_loss(op):
    """Whether an op is, or calls, a CTC loss of sparse labels."""
    if not FACTS[op.type].has_functions:
        return op.type in _CTC_LOSSES
    definitions = Definitions(op.graph)
    return _calls(op.node_def, definitions, lambda n: n.op in _CTC_LOSSES)


#: What `tf.custom_gradient` leaves in a graph.
CUSTOM_GRADIENT_OP = "IdentityN"


@dataclasses.dataclass
class CustomGradient:
    """The gradients of the weights of a candidate, by `tf.custom_gradient`.

    A sample's part in such a gradient is computed with the cotangents of the
    other samples set to zero, and samples are weighted by their cotangents.
    Both need a gradient that is linear in its cotangents.

    Attributes:
        candidate: the `Candidate`.
        output_gradients: the gradients of its outputs.
        weight_gradients: the gradients of its weights that follow from these;
            for a gradient that is a sum, its terms.
    """

    candidate: object
    output_gradients: list
    weight_gradients: list


def custom_gradients(uses, graph):
    """Return a `CustomGradient` for each candidate that has, or calls, one."""
    definitions, result = Definitions(graph), []
    for candidate in uses.candidates:
        if not _has_custom_gradient(candidate.op, definitions):
            continue
        pairs = [
            (t, tf.identity(cotangent))
            for t, cotangent in zip(candidate.outputs, candidate.cotangents)
            if cotangent is not None and t.op is candidate.op
        ]
        if not pairs:
            continue
        outputs, output_gradients = map(list, zip(*pairs))
        weight_gradients = op_gradients(
            outputs,
            [candidate.op.inputs[k] for k in candidate.weights],
            output_gradients,
            graph=candidate.op.graph,
            ends=candidate.op.inputs,
        )
        weight_gradients = [
            tf.convert_to_tensor(gradient)
            for gradient in weight_gradients
            if gradient is not None
        ]
        weight_gradients = [
            term
            for gradient in weight_gradients
            for term in _addends(gradient, output_gradients)
        ]
        result.append(
            CustomGradient(candidate, output_gradients, weight_gradients)
        )
    return result


def is_linear(tensor_type, gradient):
    """Whether a gradient of this type is linear in what it was given."""
    if isinstance(tensor_type, Free):
        return gradient.op.type == "ZerosLike" or is_zero(gradient)
    return isinstance(tensor_type, Total)


def _addends(tensor, stops):
    """Return the tensors of which this one is the sum or the difference."""
    inputs = list(tensor.op.inputs)
    is_sum = has(tensor.op, SUMS) or (
        has(tensor.op, LINEAR) and len(inputs) == 1
    )
    if not is_sum or any(tensor is term for term in stops):
        return [tensor]
    return [term for t in inputs for term in _addends(t, stops)]


def _has_custom_gradient(op, definitions):
    if op.type == CUSTOM_GRADIENT_OP:
        return has_own_gradient(op.node_def.attr)
    if not FACTS[op.type].has_functions:
        return False
    return _calls(op.node_def, definitions, lambda n: has_own_gradient(n.attr))


def _calls(node, definitions, is_wanted, *, visited=None):
    """Whether a function that a node calls, and so on, has a wanted node."""
    visited = set() if visited is None else visited
    for value in node.attr.values():
        functions = [value.func, *value.list.func]
        for name in (f.name for f in functions if f.name):
            if name in visited:
                continue
            visited.add(name)
            nodes = definitions.nodes(name)
            for inner in nodes.by_name.values() if nodes else ():
                if is_wanted(inner):
                    return True
                if _calls(inner, definitions, is_wanted, visited=visited):
                    return True
    return False
