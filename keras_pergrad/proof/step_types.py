"""The types of a step that is being traced: see `StepTypes`."""

import dataclasses

import tensorflow as tf

from keras_pergrad.keras_internals.data.batches import has_composite
from keras_pergrad.keras_internals.graphs.nodes import (
    Definitions,
    captured_from,
    captures_of,
    placeholder,
    resource_of,
)
from keras_pergrad.keras_internals.losses.losses import components
from keras_pergrad.proof import messages
from keras_pergrad.proof.calls import first_ones, in_order, keep_order
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.open_lengths import TRIES, OpenLengths
from keras_pergrad.proof.tensor_types import FREE, VALUES, At, Total
from keras_pergrad.proof.typing import Typing

#: Numbers of samples; one that no tensor of the step has is chosen.
_NUMBERS = (211, 223, 227, 229, 233, 239, 241, 251, 257, 263, 269, 271)


class StepTypes:
    """The types of the tensors of a step, from its ops.

    `wanted` are the tensors whose types are asked for, `operations` the ops
    of the step, whose effects on variables matter, `backward` the names of
    those that `tf.gradients` has added.

    Attributes:
        number: the number of samples in the step; None: it takes any.
        fixed: whether all other sizes of the batch are known.
        failures: the `Mixed` that arose, in order.
        effects: those of ops that keep state in a way that is not known.
        count: how many ops were typed.
        told: whether what all samples tell is taken to be known before.
        kinds: the name of each tensor of the step → its type.
        assigned: pairs of a variable's handle and the type of what it gets.

    Raises:
        ShapesUnknown: no sizes fit the axes whose size is not known.
    """

    def __init__(
        self,
        graph,
        batch,
        variables,
        wanted,
        operations,
        vouched=None,
        shaped=None,
        backward=(),
    ):
        self._graph = graph
        parts = tf.nest.flatten(batch)
        if has_composite(parts):
            raise ValueError(messages.COMPOSITE)
        weights = {id(t) for t in tf.nest.flatten(batch[2])}
        given = {}
        inner = {id(outer): t for outer, t in captures_of(graph)}
        for tensor in parts:
            if tf.is_tensor(tensor) and tensor.shape.rank != 0:
                known = inner.get(id(tensor), tensor)
                if known.graph is graph:
                    flags = 0 if id(tensor) in weights else VALUES
                    given[known.name] = known, flags
        self._given = given
        tensors = [t for t, _ in given.values()]
        self.number = _number(tensors)
        self.fixed = all(
            t.shape.rank is not None and None not in t.shape[1:]
            for t in tensors
        )
        opened = [t for t in tf.nest.flatten(batch[0]) if _is_open(t)]
        self._alone = len(opened) < 2
        self._variables, self._asked = variables, (vouched, shaped, backward)
        self._first = operations[0] if operations else None
        outer = captured_from(graph)
        self._handles = {
            t.name: outer.get(id(t), t)
            for t in self._inputs().values()
            if t.dtype == tf.resource
        }
        self._resources = {
            name: resource_of(handle) for name, handle in self._handles.items()
        }
        self._type(wanted, operations)

    def of(self, tensor):
        """Return the type of a tensor of the step."""
        return self.kinds.get(tensor.name, FREE)

    def find(self, tensor):
        """Return the type of a tensor; None: the step did not have it."""
        return self.kinds.get(tensor.name)

    def _type(self, wanted, operations):
        inputs = self._inputs()
        nodes = self._nodes(inputs.values())
        names = [t.op.name for t in wanted]
        names += _with_effects(nodes, self._graph, self._first)
        nodes.only(names)
        n = self.number
        if n is None:
            n = _other_than(self._graph)
        error = None
        for lengths in (OpenLengths(),) if self.fixed else TRIES:
            lengths = dataclasses.replace(lengths, alone=self._alone)
            try:
                self._run(nodes, inputs, n, lengths)
            except (ValueError, tf.errors.OpError) as failure:
                error = failure
                continue
            return
        raise ShapesUnknown(error)

    def _inputs(self):
        """Return name → tensor of what the step is given."""
        inputs = {t.name: t for t in self._graph.inputs}
        return {**inputs, **{k: t for k, (t, _) in self._given.items()}}

    def _nodes(self, inputs):
        """Return the nodes of the graph; the inputs are given."""
        nodes = Definitions(self._graph).of_graph(self._graph, inputs)
        keep_order(nodes, self._graph, self._first, self._resources)
        return nodes

    def linear(self, tensors, given):
        """Return types of tensors if `given` were sums and all others free."""
        inputs = self._inputs()
        # Of the others the tensors are independent.
        sums = {t.name: t for t in given if t.name in self._known}
        nodes = self._nodes([*inputs.values(), *sums.values()])
        nodes.only([t.op.name for t in tensors])
        graph, known = tf.Graph(), {}
        typing = self._typing.another()
        with graph.as_default():
            for name in {**inputs, **sums}:
                like = self._known[name]
                known[name] = placeholder(like.dtype, like.shape, like)
        for name in sums:
            typing.give(known[name], Total())
        typing.run(nodes, known, graph)
        return [typing.of(known[t.name]) for t in tensors]

    def _run(self, nodes, inputs, n, lengths):
        typing = Typing(
            Definitions(self._graph),
            n,
            self.number is None,
            *self._asked,
            lengths,
        )
        graph, known = tf.Graph(), dict(inputs)
        # Where all shapes are known, the ops can stay where they are.
        stays = self.number is not None and self.fixed
        stays = stays and not first_ones(nodes, self._asked[1])
        if not stays:
            with graph.as_default():
                for name, tensor in inputs.items():
                    shape = tensor.shape
                    if name in self._given and shape.rank is not None:
                        shape = [n, *lengths.sizes(shape[1:])]
                    known[name] = placeholder(tensor.dtype, shape, tensor)
        typing.give_inputs(
            [known[name] for name in self._given],
            [At(0, flags=flags) for _, flags in self._given.values()],
        )
        handles, state, first = {}, typing.state, {}
        trained = {
            id(part.handle) for v in self._variables for part in components(v)
        }
        for name, handle in self._handles.items():
            same = first.setdefault(self._resources[name], known[name])
            state.same(known[name], same)
            handles.setdefault(id(same), handle)
            if id(handle) in trained:
                handles[id(same)] = handle
                state.trained.add(id(same))
        if stays:
            names = in_order(nodes.by_name, nodes.needs.get)
            ops = [self._graph.get_operation_by_name(name) for name in names]
            typing.run_in_place(ops)
            known.update((t.name, t) for op in ops for t in op.outputs)
        else:
            typing.run(nodes, known, graph)
        self._typing, self._known = typing, known
        self.kinds = typing.all_of(known)
        self.failures, self.count = typing.failures, typing.count
        self.effects = typing.effects
        self.vouched_ops, self.told = typing.vouched_ops, typing.told
        self.without_place = typing.without_place
        self.assigned = [
            (handles.get(key), kind)
            for key, kind in typing.state.assigned.items()
        ]


def _with_effects(nodes, graph, first):
    """Return the names of nodes from the first op on that may keep state.

    Those of the backward pass are among them.
    """
    if first is None:
        return []
    operations = graph.get_operations()
    later = operations[operations.index(first) :]
    return [
        op.name
        for op in later
        if FACTS[op.type].has_state and op.name in nodes.by_name
    ]


class ShapesUnknown(ValueError):
    """An error: no sizes were found with which all shapes fit."""


def _is_open(tensor):
    """Whether an axis of an input has no length while tracing."""
    return tf.is_tensor(tensor) and (
        tensor.shape.rank is None or None in tensor.shape[1:]
    )


def _number(tensors):
    for tensor in tensors:
        if tensor.shape.rank and tensor.shape[0] is not None:
            return tensor.shape[0]
    return None


def _other_than(graph):
    """Return a number of samples of which no known size is a multiple."""
    sizes = set()
    for op in graph.get_operations():
        for tensor in op.outputs:
            if tensor.shape.rank:
                sizes.update(tensor.shape.as_list())
    sizes -= {None, 0}
    for number in _NUMBERS:
        if not any(size % number == 0 for size in sizes):
            return number
    return _NUMBERS[-1]
