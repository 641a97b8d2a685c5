"""A fingerprint of what a model computes, whatever its layers' names.

Runs of different versions of Keras are compared, so that nothing may enter
which depends on the version.

Private names in use: `Layer._flatten_layers`, `Sequential._functional`,
`KerasTensor._keras_history`, `Operation._inbound_nodes`, `Node.arguments`,
`keras.src.models.functional.Functional`.
"""

import hashlib
import inspect

import keras
from keras.src.models.functional import Functional

from keras_pergrad.callbacks.layer_settings import (
    as_text,
    is_from_keras,
    settings_of,
)


def architecture(model):
    """The fingerprint of a built model.

    The classes and settings of its layers, how they are wired, and the
    shapes of its weights; not what they begin with, and not how the gradient
    is found. What a `call` of the user's own does is not seen.
    """
    operations = _Operations()
    operations.number(model)
    shapes = [[v.dtype, list(v.shape)] for v in model.trainable_variables]
    text = as_text([operations.described, shapes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Operations:
    """Layers and other operations, numbered as they are met.

    Attributes:
        described: for each its class, its settings and what is in it.
    """

    def __init__(self):
        self.described = []
        self._numbers = {}

    def number(self, operation):
        """The same for every use of an operation."""
        if id(operation) not in self._numbers:
            self._numbers[id(operation)] = number = len(self.described)
            self.described.append(None)
            self.described[number] = self._describe(operation)
        return self._numbers[id(operation)]

    def _describe(self, operation):
        if isinstance(operation, keras.layers.InputLayer):
            return "input"
        if isinstance(operation, keras.Model):
            return self._describe_model(operation)
        inside = []
        if isinstance(operation, keras.Layer):
            inside = list(
                operation._flatten_layers(include_self=False, recursive=False)
            )
        settings, wraps = settings_of(operation, inside)
        # What Keras's own layers are made of depends on its version, and
        # follows from their settings.
        if is_from_keras(type(operation)) and not wraps:
            inside = []
        return [
            type(operation).__name__,
            settings,
            [self.number(layer) for layer in inside],
        ]

    def _describe_model(self, model):
        graph = getattr(model, "_functional", None) or model
        wiring = None
        if isinstance(graph, Functional):
            wiring = self._wiring(graph)
        inside = [
            self.number(layer)
            for layer in model._flatten_layers(
                include_self=False, recursive=False
            )
            if layer is not graph
        ]
        # In a graph they are numbered as they are wired.
        return ["model", wiring, sorted(inside) if wiring else inside]

    def _wiring(self, graph):
        """Each call: the operation and its arguments; then the outputs."""
        places: dict = {
            _key(t): ["input", i] for i, t in enumerate(graph.inputs)
        }
        calls = []
        for node in _in_order(graph.outputs, set(places)):
            arguments = _wired(_arguments(node), places)
            if _only_rounds(node):
                places[_key(node.outputs[0])] = arguments[0][0]
                continue
            calls.append([self.number(node.operation), arguments])
            for i, tensor in enumerate(node.outputs):
                places[_key(tensor)] = ["call", len(calls) - 1, i]
        return [calls, _wired(list(graph.outputs), places)]


def _key(tensor):
    operation, node, index = _history(tensor)
    return id(operation), node, index


def _history(tensor):
    # A tensor that no operation made has none.
    return getattr(tensor, "_keras_history", (None, 0, 0))


def _in_order(outputs, inputs):
    """The calls behind tensors, each after those that it depends on."""
    found, seen = [], set()
    # Not by recursion, since models may be very deep.
    waiting = [(tensor, False) for tensor in reversed(outputs)]
    while waiting:
        tensor, is_ready = waiting.pop()
        operation, index, _ = _history(tensor)
        if operation is None:
            continue
        node = operation._inbound_nodes[index]
        if is_ready:
            found.append(node)
        elif _key(tensor) not in inputs and id(node) not in seen:
            seen.add(id(node))
            waiting.append((tensor, True))
            needed = [
                part
                for part in keras.tree.flatten(_arguments(node))
                if isinstance(part, keras.KerasTensor)
            ]
            waiting.extend((tensor, False) for tensor in reversed(needed))
    return found


def _only_rounds(node):
    """Whether a call is a cast between floats.

    Some versions note those that mixed precision makes, others do not.
    """
    tensors = [*node.arguments.keras_tensors, *node.outputs]
    return type(node.operation).__name__ == "Cast" and all(
        keras.backend.is_float_dtype(tensor.dtype) for tensor in tensors
    )


def _arguments(node):
    """What a call was given, without what Keras adds.

    Whether it trains is said by `fit`. Masks come from Embedding and Masking,
    and which layers are handed them depends on the version.
    """
    kwargs = dict(node.arguments.kwargs)
    if isinstance(node.operation, keras.Layer):
        known = inspect.signature(node.operation.call).parameters
        for name in ("training", "mask", *(f"{n}_mask" for n in known)):
            kwargs.pop(name, None)
    return [list(node.arguments.args), kwargs]


def _wired(argument, places):
    """An argument of a call, with the places of the tensors in it."""
    if isinstance(argument, keras.KerasTensor):
        return places.get(_key(argument), "elsewhere")
    if isinstance(argument, keras.Variable):
        return ["variable", argument.dtype, argument.shape]
    if isinstance(argument, dict):
        return {
            key: _wired(value, places)
            for key, value in argument.items()
            if value is not None
        }
    if isinstance(argument, (list, tuple)):
        return [_wired(value, places) for value in argument]
    return argument
