"""The uses of trainable weights in a traced step, in its functions, too.

Every op is looked at once, in the order in which it was created. A tensor is
*of weights* while it depends on trainable weights and constants alone. An op
that takes such a tensor is a `Candidate`. It is a use if its output contains
samples, as the types show (see `step_proof`).
"""

import dataclasses
import functools

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.gradients import (
    GRADIENT_STOPS,
    gradients_at,
    has_own_gradient,
)
from keras_pergrad.keras_internals.graphs.nodes import (
    called_function,
    captured_origins,
    captures_of,
)
from keras_pergrad.keras_internals.losses.losses import components
from keras_pergrad.keras_internals.state.model import assigned_inputs
from keras_pergrad.proof.op_facts import (
    ARRANGES,
    ASSIGNS,
    CALLS_FUNCTION,
    MEASURES,
    has,
)

# Calls of a `tf.function`, with the ops of its body beside the call.
#
# The call still computes the outputs. The ops beside it show where weights
# meet the data inside. TensorFlow's own optimisation makes both one again.


_REPEATABLE = {"ReadVariableOp", "ResourceGather", "Placeholder"}


@dataclasses.dataclass
class InlinedCall:
    """A call, and the ops of its body in the graph of the call.

    Attributes:
        called: the outputs of the call.
        body: the graph of the function.
        ops: the ops, in order.
        outputs: the outputs of these ops, equal to those of the call.
        parent: the `InlinedCall` whose ops the call is among, or None.
    """

    called: list
    body: object
    ops: list
    outputs: list
    parent: object = None


def inline_call(call, parent=None):
    """Put the ops of a call's body beside it.

    None: that would change results.
    """
    body = _body(call, call.graph if parent is None else parent.body)
    if body is None or not _is_pure(body) or _needs_xla(call, body):
        return None
    # Taken now: when the call is differentiated it gets other outputs.
    called = list(call.outputs)
    operations = body.get_operations()
    copies = {id(a): b for a, b in zip(body.inputs, call.inputs)}
    op_count = len(call.graph.get_operations())
    with call.graph.as_default(), tf.control_dependencies(None):
        for op in operations:
            if op.type in ("Placeholder", "NoOp"):
                continue
            new_op = call.graph.create_op(
                op.type,
                [copies[id(t)] for t in op.inputs],
                [t.dtype for t in op.outputs],
                attrs=dict(op.node_def.attr.items()),
                name=f"{call.name.rsplit('/', 1)[0]}/{op.name}",
            )
            for original, copy in zip(op.outputs, new_op.outputs):
                copy.set_shape(original.shape)
                copies[id(original)] = copy
        outputs = [tf.identity(copies[id(t)]) for t in body.outputs]
    ops = call.graph.get_operations()[op_count:]
    return InlinedCall(called, body, ops, outputs, parent)


def _body(call, caller):
    """Return the graph of the called function, or None if not known."""
    function = called_function(caller, call.get_attr("f").name)
    graph = getattr(function, "graph", None)
    matches = graph is not None and len(graph.inputs) == len(call.inputs)
    return graph if matches else None


def _needs_xla(call, body):
    """Whether an op has a kernel only in XLA: a grouped convolution in 3D."""
    attributes = call.node_def.attr
    return "_XlaMustCompile" in attributes and any(
        op.type == "Conv3D" and _channels(op) != op.inputs[1].shape[-2]
        for op in body.get_operations()
    )


def _channels(op):
    channels_first = op.get_attr("data_format").startswith(b"NC")
    return op.inputs[0].shape[1 if channels_first else -1]


def _is_pure(graph):
    """Whether its ops only compute, so that they may be computed again."""
    for op in graph.get_operations():
        if has_own_gradient(op.node_def.attr):
            return False
        if has(op, CALLS_FUNCTION):
            body = _body(op, graph)
            if body is None or not _is_pure(body):
                return False
            continue
        if op.op_def.is_stateful and op.type not in _REPEATABLE:
            return False
        if any(a.HasField("func") for a in op.node_def.attr.values()):
            return False
    return True


# The uses of trainable weights in a traced step.
#
# Every op is looked at once, in the order in which it was created. A tensor
# is *of weights* while it depends on trainable weights and constants alone.
# An op that takes such a tensor is a `Candidate`. It is a use if its output
# contains samples, as the types show (see `step_proof`).


@dataclasses.dataclass
class Candidate:
    """An op that takes tensors of weights.

    Attributes:
        op: the op.
        weights: the indices of its inputs that are of weights, or that are
            handles of trainable variables.
        by_value: whether its outputs depend on the batch's values.
        outputs: its floating-point and complex outputs (of several, only
            those that some op takes), and the tensors that are taken from
            lists among its outputs. None where it can be no use.
        inlined_call: the `InlinedCall` that it is in, or None.
        repeated: the indices of weights that were repeated for each sample.
        variables: the index of an input of weights → those of its
            variables, in order.
    """

    op: tf.Operation
    weights: tuple
    by_value: bool
    outputs: list
    inlined_call: InlinedCall | None = None
    repeated: tuple = ()
    variables: dict = dataclasses.field(default_factory=dict)


class CandidateUses:
    """The uses of weights among the ops of a step.

    `claimed` are tuples of ops that are served by rules of their layers; the
    ops of the backward pass are not among `operations`.

    Attributes:
        candidates: a list of `Candidate`, in order.
        reads: for each variable the tensors that were read from it.
        claimed: for each such tuple the variables that are read in it.
        before: how many ops the graph had before the backward pass.
    """

    def __init__(self, operations, graph, data, variables, claimed=()):
        self._operations, self._graph = set(operations), graph
        self.candidates = []
        self.reads = [[] for _ in variables]
        self.claimed = {ops: set() for ops in claimed}
        self.before = len(graph.get_operations())
        self._of_weights = {}
        self._data_dependent = {id(t) for t in data}
        self._size_dependent = set()
        self._handles = _handles(graph, variables)
        self._assigned_handles = set()
        self._inlined = []
        # List (a variant tensor) to the candidates that it comes from.
        self._list_candidates = {}
        for outer, inner in captures_of(graph):
            if id(outer) in self._data_dependent:
                self._data_dependent.add(id(inner))
        claimed_by = {op: ops for ops in claimed for op in ops}
        for op in operations:
            self._visit(op, self.claimed.get(claimed_by.get(op)))
        self._drop_unused()

    def _drop_unused(self):
        """Drop ops on weights that never meet data: ops of regularisers."""
        needed, used = set(), []
        for candidate in reversed(self.candidates):
            if candidate.by_value or any(
                id(t) in needed for t in candidate.op.outputs
            ):
                used.append(candidate)
                needed.update(
                    id(candidate.op.inputs[k]) for k in candidate.weights
                )
        self.candidates = used[::-1]

    def gradients(self, loss, others=()):
        """Return the gradients at the candidates' outputs, and of others.

        They are a list for each candidate, and one list; None: no gradient.
        """
        by_tensor = {}
        self.before = len(self._graph.get_operations())
        # A call comes before the calls in it: the gradients at its outputs
        # begin the backward pass of its ops.
        for call in (None, *self._inlined):
            targets = list(others) if call is None else []
            for candidate in self.candidates:
                targets += (
                    candidate.outputs if candidate.inlined_call is call else []
                )
            for inner_call in self._inlined:
                if inner_call.parent is call:
                    targets += inner_call.called
            sources, output_gradients = [loss], None
            operations = self._graph.get_operations()
            if call is not None:
                operations = call.ops
                pairs = [
                    (t, by_tensor[id(c)])
                    for t, c in zip(call.outputs, call.called)
                    if by_tensor[id(c)] is not None
                ]
                sources = [t for t, _ in pairs]
                output_gradients = [g for _, g in pairs]
            deltas = [None] * len(targets)
            if sources and targets:
                deltas = gradients_at(
                    sources, targets, operations, output_gradients
                )
            by_tensor.update(
                (id(t), _dense(g)) for t, g in zip(targets, deltas)
            )
        return (
            [[by_tensor[id(t)] for t in c.outputs] for c in self.candidates],
            [by_tensor[id(t)] for t in others],
        )

    def variables_in(self, tensor):
        """Return the indices of the variables behind a tensor of weights."""
        if id(tensor) in self._handles:
            return frozenset([self._handles[id(tensor)]])
        return self._of_weights.get(id(tensor), frozenset())

    def is_handle(self, tensor):
        """Whether it is the handle of a trainable variable."""
        return id(tensor) in self._handles

    def _visit(self, op, claimed, parent=None):
        inputs, outputs = list(op.inputs), op.outputs
        if has(op, ASSIGNS):
            if any(id(t) in self._data_dependent for t in inputs[1:]):
                self._assigned_handles.add(id(inputs[0]))
            return
        if op.type == "ReadVariableOp":
            self._visit_read(inputs[0], outputs[0], claimed)
            return
        if has(op, MEASURES):
            # A shape depends on the batch's size, not on its values. It is
            # followed for itself: a weight may be repeated for each sample.
            if any(
                id(t) in self._data_dependent or id(t) in self._size_dependent
                for t in inputs
            ):
                self._size_dependent.update(map(id, outputs))
            return
        by_value = any(
            id(t) in self._data_dependent or id(t) in self._assigned_handles
            for t in inputs
        )
        by_size = any(id(t) in self._size_dependent for t in inputs)
        if by_value:
            self._data_dependent.update(map(id, outputs))
        if by_size:
            self._size_dependent.update(map(id, outputs))
        if claimed is not None:
            claimed.update(
                self._handles[id(t)] for t in inputs if id(t) in self._handles
            )
            return
        if op.type in GRADIENT_STOPS:
            return
        candidates = {
            id(c): c
            for t in inputs
            for c in self._list_candidates.get(id(t), ())
        }
        variables_behind = {
            k: self.variables_in(t) for k, t in enumerate(inputs)
        }
        weights = tuple(k for k, indices in variables_behind.items() if indices)
        is_call = has(op, CALLS_FUNCTION)
        if weights and by_value and is_call and self._can_inline(op):
            call = inline_call(op, parent)
            if call is not None:
                self._inlined.append(call)
                self._operations.update(call.ops)
                for inner_op in call.ops:
                    self._visit(inner_op, None, call)
                return
        differentiable = [
            t
            for t in outputs
            if _has_gradients(t.dtype)
            and (
                # No op takes the loss.
                len(outputs) == 1
                or not self._operations.isdisjoint(t.consumers())
            )
        ]
        if weights:
            repeated = tuple(
                k for k in weights if id(inputs[k]) in self._size_dependent
            )
            # Without samples it is no use, and its gradient is not needed.
            # A weight behind it is as large as before, and its own gradient
            # is found behind it.
            arranges = has(op, ARRANGES) or op.type in ("Cast", "Neg")
            is_rearranging = arranges and not by_value and not repeated
            targets = [] if is_rearranging else list(differentiable)
            candidate = Candidate(
                op,
                weights,
                by_value,
                targets,
                parent,
                repeated,
                {k: sorted(variables_behind[k]) for k in weights},
            )
            self.candidates.append(candidate)
            candidates[id(candidate)] = candidate
        if by_value and candidates:
            for maker in candidates.values():
                if maker.op is not op:
                    maker.outputs += differentiable
            for t in outputs:
                if t.dtype == tf.variant:
                    self._list_candidates[id(t)] = list(candidates.values())
        if by_value or not weights:
            return
        variables = frozenset().union(*variables_behind.values())
        for t in outputs:
            if _has_gradients(t.dtype) or t.dtype in (tf.variant, tf.resource):
                self._of_weights[id(t)] = variables

    def _can_inline(self, call):
        """Whether the variables that a call reads are as it has read them.

        They are not if the step assigns one of them: the ops beside the call
        would read what was assigned after it.
        """
        return not any(id(t) in self._written_handles for t in call.inputs)

    @functools.cached_property
    def _written_handles(self):
        """The ids of the handles of all variables that the step assigns."""
        return {id(t) for t in assigned_inputs(self._graph)}

    def _visit_read(self, handle, value, claimed):
        if (
            id(handle) in self._assigned_handles
            or id(handle) in self._data_dependent
        ):
            self._data_dependent.add(id(value))
        index = self._handles.get(id(handle))
        if index is None:
            return
        if claimed is not None:
            claimed.add(index)
            return
        self.reads[index].append(value)
        self._of_weights[id(value)] = frozenset([index])


def _has_gradients(dtype):
    """Whether gradients flow through tensors of this type."""
    return dtype.is_floating or dtype.is_complex


def _dense(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _handles(graph, variables):
    """Return id of a handle in a graph → index of its variable."""
    variable_indices = {
        id(part.handle): index
        for index, variable in enumerate(variables)
        for part in components(variable)
    }
    captured = {
        key: variable_indices[id(handle)]
        for key, handle in captured_origins(graph).items()
        if id(handle) in variable_indices
    }
    return {**variable_indices, **captured}
