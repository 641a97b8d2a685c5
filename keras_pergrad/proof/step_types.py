"""The types of a step that is being traced: see `StepTypes`."""

import functools

import tensorflow as tf

from keras_pergrad.common.batches import has_composite
from keras_pergrad.keras_internals.graphs.nodes import (
    Definitions,
    captured_origins,
    captures_of,
    placeholder,
    resource_key,
)
from keras_pergrad.keras_internals.losses.losses import components
from keras_pergrad.proof import messages
from keras_pergrad.proof.calls import (
    keep_order,
    leading_nodes,
    topological_order,
)
from keras_pergrad.proof.every_number import has_other_axis
from keras_pergrad.proof.numbers import (
    OpenLengths,
    ShapesUnknown,
    free_primes,
    known_numbers,
    lengths_that_may_fit,
)
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.tensor_types import FREE, VALUES, At, Total
from keras_pergrad.proof.typing import Typing


class StepTypes:
    """The types of the tensors of a step, from its ops.

    Args:
        graph: the graph of the step.
        batch: x, y and sample weights.
        variables: the trainable variables.
        typed_tensors: the tensors whose types are asked for.
        operations: the ops of the step, whose effects on variables matter.
        is_vouched: `is_vouched(op, name)` tells whether the user vouches for
            an op; None: for none.
        has_known_shape: as of `Typing`.
        backward: the names of the ops that `tf.gradients` has added.

    Attributes:
        number: the number of samples in the step; None: it takes any.
        fixed: whether all other sizes of the batch are known.
        failures: the `Mixed` that arose, in order.
        effects: those of ops that keep state in a way that is not known.
        count: how many ops were typed.
        assumes_same_for_all: whether an answer that all samples give together,
            as of labels in a hinge loss, is taken to be known beforehand.
        by_name: the name of each tensor of the step → its type.
        assigned: pairs of a variable's handle and the type of what it gets.

    Raises:
        ShapesUnknown: no sizes fit the axes whose size is not known.
    """

    def __init__(
        self,
        graph,
        batch,
        variables,
        typed_tensors,
        operations,
        is_vouched=None,
        has_known_shape=None,
        backward=(),
    ):
        self._graph = graph
        parts = tf.nest.flatten(batch)
        if has_composite(parts):
            raise ValueError(messages.COMPOSITE)
        weights = tf.nest.flatten(batch[2])
        batch_inputs = {}
        inner_tensors = {outer.ref(): t for outer, t in captures_of(graph)}
        # The name of each part of the batch, as messages name it.
        self._labels, self._dependences = {}, None
        for label, tensor in _labelled(batch):
            if tf.is_tensor(tensor) and tensor.shape.rank != 0:
                graph_tensor = inner_tensors.get(tensor.ref(), tensor)
                if graph_tensor.graph is graph:
                    is_weight = any(tensor is part for part in weights)
                    flags = 0 if is_weight else VALUES
                    batch_inputs[graph_tensor.name] = graph_tensor, flags
                    self._labels.setdefault(graph_tensor.name, label)
        self._batch_inputs = batch_inputs
        tensors = [t for t, _ in batch_inputs.values()]
        self.number = _batch_size(tensors)
        self.fixed = all(
            t.shape.rank is not None and None not in t.shape[1:]
            for t in tensors
        )
        self._variables, self._typing_options = (
            variables,
            (is_vouched, has_known_shape, backward),
        )
        self._first_op = operations[0] if operations else None
        outer = captured_origins(graph)
        self._handles = {
            t.name: outer.get(id(t), t)
            for t in self._inputs().values()
            if t.dtype == tf.resource
        }
        self._resources = {
            name: resource_key(handle) for name, handle in self._handles.items()
        }
        self._try_lengths(typed_tensors, operations)

    def of(self, tensor):
        """Return the type of a tensor of the step."""
        return self.by_name.get(tensor.name, FREE)

    def number_of(self, tensor):
        """Return what shapes alone determine of a tensor, or None."""
        return self._typing.number_of(self._tensors[tensor.name])

    def has_other_axis(self, tensor):
        """Whether it has an axis as long as the batch, but that of samples."""
        typed, n = self._tensors[tensor.name], self._typing.n
        return has_other_axis(typed, self.of(tensor), n)

    @property
    def n(self):
        """The number of samples with which the step is typed."""
        return self._typing.n

    def _try_lengths(self, typed_tensors, operations):
        inputs = self._inputs()
        nodes = self._nodes(inputs.values())
        names = [t.op.name for t in typed_tensors]
        names += _ops_with_effects(nodes, self._graph, self._first_op)
        nodes.only(names)
        axes = [
            (label, k)
            for (tensor, _), label in zip(
                self._batch_inputs.values(), self._labels.values()
            )
            if tensor.shape.rank is not None
            for k, size in enumerate(tensor.shape)
            if k and size is None
        ]
        n, primes = self.number, []
        definitions = Definitions(self._graph)
        if n is None or axes:
            taken = known_numbers(self._graph, nodes, definitions)
            taken.update(k for v in self._variables for k in v.shape if k)
            taken.update([] if n is None else [n])
            free_number, primes = free_primes(taken - {0})
            n = free_number if n is None else n
        candidates = lengths_that_may_fit(axes, primes)
        lengths = next(candidates)
        while True:
            typing = Typing(
                definitions,
                n,
                self.number is None,
                *self._typing_options,
                lengths,
                functools.partial(self._lengths_at, nodes),
            )
            try:
                self._type_with(typing, nodes, inputs)
                return
            except (ValueError, tf.errors.OpError) as failure:
                error = failure
            try:
                lengths = candidates.send(error)
            except StopIteration:
                raise ShapesUnknown(
                    error,
                    axes=OpenLengths.text(axes),
                    number=n if self.fixed else None,
                ) from None

    def _lengths_at(self, nodes, lengths, name, op):
        """Return the lengths that an op, as of `Typing`, may have in shapes."""
        if lengths.is_distinct:
            return lengths
        if self._dependences is None:
            parts: dict = {
                key.rsplit(":", 1)[0]: {label}
                for key, label in self._labels.items()
            }
            for node in topological_order(nodes.by_name, nodes.needs.get):
                needs = [parts[k] for k in nodes.needs[node] if k in parts]
                parts[node] = frozenset().union(*needs)
            self._dependences = parts
        if name in self._dependences:
            lengths = lengths.of_inputs(self._dependences[name])
        if op is None or not lengths.given:
            return lengths
        source = self._graph.get_operation_by_name(name)
        typed_tensors = *op.inputs, *op.outputs
        pairs = zip(typed_tensors, (*source.inputs, *source.outputs))
        open_sizes = [
            size
            for typed, tensor in pairs
            if typed.shape.rank is not None and tensor.shape.rank is not None
            for size, known in zip(typed.shape, tensor.shape)
            if known is None
        ]
        return lengths.of_sizes(open_sizes)

    def _inputs(self):
        """Return name → tensor of what the step is given."""
        inputs = {t.name: t for t in self._graph.inputs}
        return {**inputs, **{k: t for k, (t, _) in self._batch_inputs.items()}}

    def _nodes(self, inputs):
        """Return the nodes of the graph; the inputs are given."""
        nodes = Definitions(self._graph).of_graph(self._graph, inputs)
        keep_order(nodes, self._graph, self._first_op, self._resources)
        return nodes

    def types_if_linear(self, tensors, output_gradients):
        """Return the types of tensors that depend on `output_gradients` alone.

        These are typed as sums over the samples and all else as free: what is
        linear in them gets the type of a sum, too.
        """
        inputs = self._inputs()
        # Cotangents that were not typed have no effect on the tensors.
        sums = {t.name: t for t in output_gradients if t.name in self._tensors}
        nodes = self._nodes([*inputs.values(), *sums.values()])
        nodes.only([t.op.name for t in tensors])
        graph, tensors_by_name = tf.Graph(), {}
        typing = self._typing.fresh()
        with graph.as_default():
            for name in {**inputs, **sums}:
                original = self._tensors[name]
                tensors_by_name[name] = placeholder(
                    original.dtype, original.shape, original
                )
        for name in sums:
            typing.set_type(tensors_by_name[name], Total())
        typing.run(nodes, tensors_by_name, graph)
        return [typing.of(tensors_by_name[t.name]) for t in tensors]

    def _type_with(self, typing, nodes, inputs):
        n, lengths = typing.n, typing.lengths
        graph, tensors = tf.Graph(), dict(inputs)
        # Where all shapes are known, a copy of the graph would show no more.
        is_in_place = self.number is not None and self.fixed
        is_in_place = is_in_place and not leading_nodes(
            nodes, self._typing_options[1]
        )
        if not is_in_place:
            with graph.as_default():
                for name, tensor in inputs.items():
                    shape = tensor.shape
                    if name in self._batch_inputs and shape.rank is not None:
                        sizes = lengths.sizes(self._labels[name], shape)
                        shape = [n, *sizes[1:]]
                    tensors[name] = placeholder(tensor.dtype, shape, tensor)
        typing.set_inputs(
            [tensors[name] for name in self._batch_inputs],
            [At(0, flags=flags) for _, flags in self._batch_inputs.values()],
        )
        handles, state, first_handles = {}, typing.state, {}
        trained_handles = {
            part.handle.ref() for v in self._variables for part in components(v)
        }
        for name, handle in self._handles.items():
            first_handle = first_handles.setdefault(
                self._resources[name], tensors[name]
            )
            typing.values.forward(first_handle, tensors[name])
            key = state.key(first_handle)
            handles.setdefault(key, handle)
            # Several handles may lead to one variable. Reported is the one of
            # the trained variable itself.
            if handle.ref() in trained_handles:
                handles[key] = handle
                state.trained.add(key)
        if is_in_place:
            names = topological_order(nodes.by_name, nodes.needs.get)
            ops = [self._graph.get_operation_by_name(name) for name in names]
            typing.run_in_place(ops)
            tensors.update((t.name, t) for op in ops for t in op.outputs)
        else:
            typing.run(nodes, tensors, graph)
        self._typing, self._tensors = typing, tensors
        self.by_name = typing.types_by_key(tensors)
        self.failures, self.count = typing.failures, typing.count
        self.effects = typing.effects
        self.vouched_ops, self.assumes_same_for_all = (
            typing.vouched_ops,
            typing.assumes_same_for_all,
        )
        self.without_axis = typing.without_axis
        self.assigned = [
            (handles.get(key), assigned_type)
            for key, assigned_type in typing.state.assigned.items()
        ]


def _ops_with_effects(nodes, graph, first):
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


def _labelled(batch):
    """Yield (name, tensor) of each part of a batch, as `tf.nest` has them."""
    pending = list(zip(("x", "y", "sample_weight"), batch))[::-1]
    while pending:
        name, part = pending.pop()
        if isinstance(part, dict):
            items = [(f"{name}[{key!r}]", part[key]) for key in sorted(part)]
        elif isinstance(part, (list, tuple)):
            items = [(f"{name}[{k}]", value) for k, value in enumerate(part)]
        else:
            yield from ((name, t) for t in tf.nest.flatten(part))
            continue
        pending += items[::-1]


def _batch_size(tensors):
    for tensor in tensors:
        if tensor.shape.rank and tensor.shape[0] is not None:
            return tensor.shape[0]
    return None
