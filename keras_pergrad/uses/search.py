"""The uses of trainable weights in a traced step, in its functions, too.

Every op is looked at once, in the order in which it was created. A tensor is
*of weights* while it depends on trainable weights and constants alone. An op
that takes such a tensor is a `Candidate`. It is a use if its output contains
samples, as the types show (see `step_proof`).
"""

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.gradients import (
    GRADIENT_STOPS,
    gradients_at,
    may_carry_gradient,
)
from keras_pergrad.keras_internals.graphs.nodes import (
    captured_origins,
    captures_of,
)
from keras_pergrad.keras_internals.losses.losses import components
from keras_pergrad.keras_internals.state.model import assigned_inputs
from keras_pergrad.proof.op_facts import (
    ARRANGES,
    ASSIGNS,
    CALLS_FUNCTION,
    CONVERTS,
    FACTS,
    MEASURES,
    READS,
)
from keras_pergrad.uses.inlining import InlinedCall, inline_call


@dataclasses.dataclass(eq=False, slots=True)
class Dependence:
    """What a tensor of the step depends on.

    Attributes:
        tensor: the tensor. It stays alive, so that no other one gets its id.
        weights: the indices of the variables of which it is made, and of
            constants alone; of a handle, that of its variable.
        is_handle: whether it is the handle of a trainable variable.
        is_assigned: whether the step sets what is behind it from the batch.
        by_value: whether it depends on the batch's values.
        by_size: whether it depends on the number of samples. That is followed
            for itself: a weight may be repeated for each sample.
        candidates: of a list, the `Candidate`s from which it comes.
        gradient: the gradient of the loss, once it was asked for.
    """

    tensor: Any
    weights: frozenset = frozenset()
    is_handle: bool = False
    is_assigned: bool = False
    by_value: bool = False
    by_size: bool = False
    candidates: tuple = ()
    gradient: Any = None


#: Of a tensor of which nothing was noted. Nothing changes it.
_NOTHING = Dependence(None)


@dataclasses.dataclass(eq=False)
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
        cotangents: the gradients at `outputs`, once the step is
            differentiated.
    """

    op: tf.Operation
    weights: tuple
    by_value: bool
    outputs: list
    inlined_call: InlinedCall | None = None
    repeated: tuple = ()
    variables: dict = dataclasses.field(default_factory=dict)
    cotangents: list = dataclasses.field(default_factory=list)


class CandidateUses:
    """The uses of weights among the ops of a step.

    `claimed` are tuples of ops that are served by rules of their layers; the
    ops of the backward pass are not among `operations`.

    Attributes:
        candidates: a list of `Candidate`, in order.
        sources: for each variable the tensors at which the gradients of what is
            made of it end: what was read from it, or its handle, where entries
            that are the same for all samples were looked up.
        claimed: for each such tuple the variables that are read in it.
        before: how many ops the graph had before the backward pass.
    """

    def __init__(self, operations, graph, data, *, variables, claimed=()):
        self._operations, self._graph = set(operations), graph
        self.candidates = []
        self.sources = [[] for _ in variables]
        self.claimed = {ops: set() for ops in claimed}
        self.before = len(graph.get_operations())
        self._dependences = {}
        self._inlined = []
        for tensor in data:
            self._of(tensor).by_value = True
        self._note_handles(variables)
        for outer, inner in captures_of(graph):
            if self._found(outer).by_value:
                self._of(inner).by_value = True
        claimed_by = {op: ops for ops in claimed for op in ops}
        for op in operations:
            self._visit(op, self.claimed.get(claimed_by.get(op)))
        self._drop_unused()

    def _of(self, tensor) -> Dependence:
        dependence = self._dependences.get(id(tensor))
        if dependence is None:
            dependence = self._dependences[id(tensor)] = Dependence(tensor)
        return dependence

    def _note_handles(self, variables):
        """Note the handles of trainable variables, in the graph and outside."""
        for index, variable in enumerate(variables):
            for part in components(variable):
                self._dependences[id(part.handle)] = Dependence(
                    part.handle, frozenset([index]), is_handle=True
                )
        for inner, outer in captured_origins(self._graph).items():
            origin = self._found(outer)
            if origin.is_handle:
                handle = inner.deref()
                self._dependences[id(handle)] = Dependence(
                    handle, origin.weights, is_handle=True
                )

    def _drop_unused(self):
        """Drop ops on weights that never meet data: ops of regularisers."""
        needed, used = set(), []
        for candidate in reversed(self.candidates):
            op = candidate.op
            if candidate.by_value or not needed.isdisjoint(map(id, op.outputs)):
                used.append(candidate)
                needed.update(id(op.inputs[k]) for k in candidate.weights)
        self.candidates = used[::-1]

    def differentiate(self, loss, others=()):
        """Find the gradients at the candidates' outputs, and at others."""
        self.before = len(self._graph.get_operations())
        # A call comes before the calls in it: the gradients at its outputs
        # begin the backward pass of its ops.
        for call in (None, *self._inlined):
            targets = list(others) if call is None else []
            for candidate in self.candidates:
                if candidate.inlined_call is call:
                    targets += candidate.outputs
            for inner_call in self._inlined:
                if inner_call.parent is call:
                    targets += inner_call.called
            sources, cotangents = [loss], None
            operations = self._graph.get_operations()
            if call is not None:
                operations = call.ops
                called = map(self.gradient_of, call.called)
                pairs = [
                    (t, cotangent)
                    for t, cotangent in zip(call.outputs, called)
                    if cotangent is not None
                ]
                sources = [t for t, _ in pairs]
                cotangents = [cotangent for _, cotangent in pairs]
            if not sources or not targets:
                continue
            gradients = gradients_at(
                sources, targets, operations, cotangents=cotangents
            )
            for target, gradient in zip(targets, gradients):
                if gradient is not None:
                    gradient = tf.convert_to_tensor(gradient)
                self._of(target).gradient = gradient
        for candidate in self.candidates:
            candidate.cotangents = list(
                map(self.gradient_of, candidate.outputs)
            )

    def _found(self, tensor):
        """Return what is known of a tensor, without noting it."""
        return self._dependences.get(id(tensor), _NOTHING)

    def gradient_of(self, tensor):
        """Return the gradient that was found at a tensor, or None."""
        return self._found(tensor).gradient

    def variables_in(self, tensor):
        """Return the indices of the variables behind a tensor of weights."""
        return self._found(tensor).weights

    def is_handle(self, tensor):
        """Whether it is the handle of a trainable variable."""
        return self._found(tensor).is_handle

    def _visit(self, op, claimed, parent=None):
        """Note what the outputs of an op depend on, and whether it is a use."""
        traits = FACTS[op.type].traits
        inputs = list(map(self._found, op.inputs))
        if traits & ASSIGNS:
            if any(d.by_value for d in inputs[1:]):
                self._of(op.inputs[0]).is_assigned = True
            return
        if op.type == "ReadVariableOp":
            self._visit_read(op, inputs[0], claimed)
            return
        by_value = by_size = has_weights = False
        for dependence in inputs:
            by_value |= dependence.by_value or dependence.is_assigned
            by_size |= dependence.by_size
            has_weights |= bool(dependence.weights or dependence.candidates)
        if traits & MEASURES:
            # A shape depends on the batch's size, not on its values.
            by_size |= any(d.by_value for d in inputs)
            by_value = has_weights = False
        if by_value or by_size:
            for tensor in op.outputs:
                output = self._of(tensor)
                output.by_value |= by_value
                output.by_size |= by_size
        if not has_weights:
            return
        if claimed is not None:
            claimed.update(*(d.weights for d in inputs if d.is_handle))
        elif op.type not in GRADIENT_STOPS:
            self._visit_use(op, inputs, traits, by_value=by_value, call=parent)

    def _visit_read(self, op, handle, claimed):
        (value,) = op.outputs
        if handle.is_assigned or handle.by_value:
            self._of(value).by_value = True
        if not handle.is_handle:
            return
        if claimed is not None:
            claimed.update(handle.weights)
            return
        (index,) = self._of(value).weights = handle.weights
        if not any(t.dtype == tf.resource for t in self.sources[index]):
            self.sources[index].append(value)

    def _visit_use(self, op, inputs, traits, *, by_value, call):
        """Note what an op does with weights, or with lists made of them."""
        weights = tuple(k for k, d in enumerate(inputs) if d.weights)
        is_call = traits & CALLS_FUNCTION
        if weights and by_value and is_call and self._inline(op, call):
            return
        differentiable = self._differentiable(op)
        looks_up = traits & READS and inputs[0].is_handle
        if looks_up and differentiable and not by_value:
            (index,) = inputs[0].weights
            # Gradients at what was read go on to the handle.
            self.sources[index] = [op.inputs[0]]
        # In this order, each once.
        makers = dict.fromkeys(c for d in inputs for c in d.candidates)
        for maker in makers if by_value else ():
            maker.outputs += differentiable
        if weights:
            repeated = tuple(k for k in weights if inputs[k].by_size)
            # Without samples it is no use, and its gradient is not needed. A
            # weight behind it is as large as before, and its own gradient is
            # found behind it.
            arranges = traits & (ARRANGES | CONVERTS)
            is_rearranging = arranges and not by_value and not repeated
            candidate = Candidate(
                op,
                weights=weights,
                by_value=by_value,
                outputs=[] if is_rearranging else differentiable,
                inlined_call=call,
                repeated=repeated,
                variables={k: sorted(inputs[k].weights) for k in weights},
            )
            self.candidates.append(candidate)
            makers[candidate] = None
        for tensor in op.outputs:
            if by_value and tensor.dtype == tf.variant:
                self._of(tensor).candidates = tuple(makers)
            elif weights and not by_value and may_carry_gradient(tensor.dtype):
                of_inputs = (d.weights for d in inputs)
                self._of(tensor).weights = frozenset().union(*of_inputs)

    def _differentiable(self, op):
        """Return the outputs of an op through which a loss may depend on it."""
        outputs = [
            t for t in op.outputs if t.dtype.is_floating or t.dtype.is_complex
        ]
        if len(op.outputs) == 1:
            # No op takes the loss.
            return outputs
        return [
            t for t in outputs if not self._operations.isdisjoint(t.consumers())
        ]

    def _inline(self, op, parent):
        """Visit the ops of a call in the place of the call; whether they are.

        It must read the variables as they are: if the step assigns one of them,
        the ops beside the call would read what was assigned after it.
        """
        if not self._written_handles.isdisjoint(map(id, op.inputs)):
            return False
        call = inline_call(op, parent)
        if call is None:
            return False
        self._inlined.append(call)
        self._operations.update(call.ops)
        for inner_op in call.ops:
            self._visit(inner_op, None, call)
        return True

    @functools.cached_property
    def _written_handles(self):
        """The ids of the handles of all variables that the step assigns."""
        return {id(t) for t in assigned_inputs(self._graph)}
