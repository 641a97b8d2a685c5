"""The types of a step that is being traced: see `StepTypes`."""

import dataclasses
import functools
from typing import Any

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
from keras_pergrad.proof.calls import type_nodes
from keras_pergrad.proof.every_number import has_other_axis
from keras_pergrad.proof.numbers import (
    OpenLengths,
    ShapesUnknown,
    free_primes,
    known_numbers,
    lengths_that_may_fit,
)
from keras_pergrad.proof.op_facts import FACTS
from keras_pergrad.proof.order import (
    keep_order,
    leading_nodes,
    topological_order,
)
from keras_pergrad.proof.tensor_types import FREE, VALUES, At, Total
from keras_pergrad.proof.typing import Typing


def type_step(
    graph,
    batch,
    *,
    variables,
    operations,
    tensors,
    is_vouched=None,
    has_known_shape=None,
    backward=(),
):
    """Return the `StepTypes` of a step, from its ops.

    Args:
        graph: the graph of the step.
        batch: x, y and sample weights.
        variables: the trainable variables.
        operations: the ops of the step, whose effects on variables matter.
        tensors: the tensors whose types are asked for.
        is_vouched: `is_vouched(op, name)` tells whether the user vouches for
            an op; None: for none.
        has_known_shape: as of `Typing`.
        backward: the names of the ops that `tf.gradients` has added.

    Raises:
        ShapesUnknown: no sizes fit the axes whose size is not known.
    """
    step = _StepGraph(graph, batch, variables, operations=operations)
    nodes = step.nodes(step.inputs.values())
    names = [t.op.name for t in tensors]
    names += _ops_with_effects(nodes, graph, step.first_op)
    nodes.only(names)

    def type_with(n, **lengths):
        make_typing = functools.partial(
            Typing,
            step.definitions,
            n,
            any_number=step.number is None,
            is_vouched=is_vouched,
            has_known_shape=has_known_shape,
            backward=backward,
            **lengths,
        )
        return _types_with(
            make_typing, step, nodes, has_known_shape=has_known_shape
        )

    if step.number is None or step.open_axes:
        return _type_open_step(step, nodes, type_with)
    try:
        return type_with(step.number)
    except (ValueError, tf.errors.OpError) as error:
        number = step.number if step.fixed else None
        raise ShapesUnknown(error, number=number) from None


def _type_open_step(step, nodes, type_with):
    """Return the `StepTypes` of a step with sizes that are not known."""
    n, axes = step.number, step.open_axes
    taken = known_numbers(step.graph, nodes, step.definitions)
    taken.update(k for v in step.variables for k in v.shape if k)
    taken.update([] if n is None else [n])
    free_number, primes = free_primes(taken - {0})
    n = free_number if n is None else n
    dependences = functools.cache(lambda: step.dependences(nodes))
    lengths_at = functools.partial(step.lengths_at, dependences)
    candidates = lengths_that_may_fit(axes, primes)
    lengths = next(candidates)
    while True:
        try:
            return type_with(n, lengths=lengths, lengths_at=lengths_at)
        except (ValueError, tf.errors.OpError) as failure:
            error = failure
        try:
            lengths = candidates.send(error)
        except StopIteration:
            raise ShapesUnknown(
                error,
                axes=OpenLengths.text(axes),
                number=n if step.fixed else None,
            ) from None


@dataclasses.dataclass(eq=False)
class StepTypes:
    """The types of the tensors of a step.

    Attributes:
        typing: the `Typing` that found them, and what it could not type.
        number: the number of samples in the step; None: it takes any.
        fixed: whether all other sizes of the batch are known.
        by_name: the name of each tensor of the step → its type.
        assigned: pairs of a variable's handle and the type of what it gets.
    """

    _step: Any
    _make_typing: Any
    typing: Typing
    _tensors: dict
    number: int | None
    fixed: bool
    by_name: dict
    assigned: list

    def of(self, tensor):
        """Return the type of a tensor of the step."""
        return self.by_name.get(tensor.name, FREE)

    def of_all(self, tensors):
        """Return the types of tensors of the step; None, of none."""
        return [None if t is None else self.of(t) for t in tensors]

    def number_of(self, tensor):
        """Return what shapes alone determine of a tensor, or None."""
        return self.typing.numbers.of(self._tensors[tensor.name])

    def has_other_axis(self, tensor):
        """Whether it has an axis as long as the batch, but that of samples."""
        typed = self._tensors[tensor.name]
        return has_other_axis(typed, self.of(tensor), self.typing.n)

    def types_if_linear(self, tensors, output_gradients):
        """Return the types of tensors that depend on `output_gradients` alone.

        These are typed as sums over the samples and all else as free: what is
        linear in them gets the type of a sum, too.
        """
        inputs = self._step.inputs
        # Cotangents that were not typed have no effect on the tensors.
        sums = {t.name: t for t in output_gradients if t.name in self._tensors}
        nodes = self._step.nodes([*inputs.values(), *sums.values()])
        nodes.only([t.op.name for t in tensors])
        graph, tensors_by_name = tf.Graph(), {}
        typing = self._make_typing()
        with graph.as_default():
            for name in {**inputs, **sums}:
                original = self._tensors[name]
                tensors_by_name[name] = placeholder(
                    original.dtype, original.shape, original
                )
        for name in sums:
            typing.values[tensors_by_name[name]].type = Total()
        type_nodes(nodes, tensors_by_name, graph, typing=typing)
        return [typing.of(tensors_by_name[t.name]) for t in tensors]


class _StepGraph:
    """The graph of a step, and what it is given.

    Attributes:
        inputs: the name of each tensor that it is given → the tensor.
        batch_inputs: the name of each part of the batch → the tensor and the
            flags of its type.
        labels: the name of each part of the batch → how messages name it.
        handles: the name of each handle → the handle from which it comes.
        resources: the name of each handle → a key of what is behind it.
        definitions: the `Definitions` of the functions that it calls.
        number, fixed: as of `StepTypes`.
        first_op: the first op of the step, or None.
    """

    def __init__(self, graph, batch, variables, *, operations):
        self.graph, self.variables = graph, variables
        parts = tf.nest.flatten(batch)
        if has_composite(parts):
            raise ValueError(messages.COMPOSITE)
        weights = tf.nest.flatten(batch[2])
        self.batch_inputs, self.labels = {}, {}
        captures, outer = captures_of(graph), captured_origins(graph)
        inner_tensors = {outside.ref(): t for outside, t in captures}
        for label, tensor in _labelled(batch):
            if tf.is_tensor(tensor) and tensor.shape.rank != 0:
                graph_tensor = inner_tensors.get(tensor.ref(), tensor)
                if graph_tensor.graph is graph:
                    is_weight = any(tensor is part for part in weights)
                    flags = 0 if is_weight else VALUES
                    self.batch_inputs[graph_tensor.name] = graph_tensor, flags
                    self.labels.setdefault(graph_tensor.name, label)
        tensors = [t for t, _ in self.batch_inputs.values()]
        self.number = _batch_size(tensors)
        self.fixed = all(
            t.shape.rank is not None and None not in t.shape[1:]
            for t in tensors
        )
        self.first_op = operations[0] if operations else None
        self.inputs = {t.name: t for t in [*graph.inputs, *tensors]}
        self.handles = {
            t.name: outer.get(t.ref(), t)
            for t in self.inputs.values()
            if t.dtype == tf.resource
        }
        self.resources = {
            name: resource_key(handle) for name, handle in self.handles.items()
        }
        self.definitions = Definitions(graph)

    @property
    def open_axes(self):
        """The axes of the batch whose length is not known, as `OpenLengths`."""
        return [
            (label, k)
            for (tensor, _), label in zip(
                self.batch_inputs.values(), self.labels.values()
            )
            if tensor.shape.rank is not None
            for k, size in enumerate(tensor.shape)
            if k and size is None
        ]

    def nodes(self, inputs):
        """Return the nodes of the graph; the inputs are given."""
        nodes = self.definitions.of_graph(self.graph, inputs)
        keep_order(nodes, self.graph, self.first_op, resources=self.resources)
        return nodes

    def lengths_at(self, dependences, lengths, name, *, op):
        """Return the lengths that an op, as of `Typing`, may have in shapes.

        `dependences()` returns what the method of that name does.
        """
        if lengths.is_distinct:
            return lengths
        if name in dependences():
            lengths = lengths.of_inputs(dependences()[name])
        if op is None or not lengths.given:
            return lengths
        source = self.graph.get_operation_by_name(name)
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

    def dependences(self, nodes):
        """Return the name of each node → the parts of the batch behind it."""
        parts: dict = {
            key.rsplit(":", 1)[0]: {label} for key, label in self.labels.items()
        }
        for node in topological_order(nodes.by_name, nodes.needs.get):
            needs = [parts[k] for k in nodes.needs[node] if k in parts]
            parts[node] = frozenset().union(*needs)
        return parts


def _types_with(make_typing, step, nodes, *, has_known_shape):
    """Return the `StepTypes` of a step by the `Typing` that is made."""
    typing = make_typing()
    n, lengths = typing.n, typing.lengths
    graph, tensors = tf.Graph(), dict(step.inputs)
    # Where all shapes are known, a copy of the graph would show no more.
    is_in_place = step.number is not None and step.fixed
    is_in_place = is_in_place and not leading_nodes(nodes, has_known_shape)
    if not is_in_place:
        with graph.as_default():
            for name, tensor in step.inputs.items():
                shape = tensor.shape
                if name in step.batch_inputs and shape.rank is not None:
                    sizes = lengths.sizes(step.labels[name], shape)
                    shape = [n, *sizes[1:]]
                tensors[name] = placeholder(tensor.dtype, shape, tensor)
    typing.set_inputs(
        [tensors[name] for name in step.batch_inputs],
        [At(0, flags=flags) for _, flags in step.batch_inputs.values()],
    )
    handles, state, first_handles = {}, typing.state, {}
    trained_handles = {
        part.handle.ref() for v in step.variables for part in components(v)
    }
    for name, handle in step.handles.items():
        first_handle = first_handles.setdefault(
            step.resources[name], tensors[name]
        )
        typing.values.forward(first_handle, tensors[name])
        key = typing.values[first_handle].key
        handles.setdefault(key, handle)
        # Several handles may lead to one variable. Reported is the one of the
        # trained variable itself.
        if handle.ref() in trained_handles:
            handles[key] = handle
            state.trained.add(key)
    if is_in_place:
        names = topological_order(nodes.by_name, nodes.needs.get)
        ops = {step.graph.get_operation_by_name(name): name for name in names}
        typing.run(ops)
        tensors.update((t.name, t) for op in ops for t in op.outputs)
    else:
        type_nodes(nodes, tensors, graph, typing=typing)
    return StepTypes(
        step,
        make_typing,
        typing,
        _tensors=tensors,
        number=step.number,
        fixed=step.fixed,
        by_name=dict(zip(tensors, typing.values.types_of(tensors.values()))),
        assigned=[
            (handles.get(key), assigned_type)
            for key, assigned_type in state.assigned.items()
        ],
    )


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
