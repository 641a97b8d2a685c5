"""The proof, by the types of its ops, that a step keeps samples separate."""

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.losses.losses import loss_tensors
from keras_pergrad.proof import messages
from keras_pergrad.proof.layer_methods import is_exactly, is_samplewise
from keras_pergrad.proof.layout import Layout
from keras_pergrad.proof.numbers import ShapesUnknown
from keras_pergrad.proof.op_facts import CALLS, FACTS, REPEATS, has
from keras_pergrad.proof.origins import (
    CUSTOM_GRADIENT_OP,
    OpOrigin,
    custom_gradients,
)
from keras_pergrad.proof.refusals import StepRefusals
from keras_pergrad.proof.step_types import StepTypes, type_step
from keras_pergrad.proof.tensor_types import (
    At,
    Free,
    Mixed,
    Total,
)


@dataclasses.dataclass
class UseTypes:
    """The types at one op that takes tensors of weights.

    Attributes:
        inputs: the index of an input of samples → its type.
        outputs: the type of each output of the candidate.
        cotangents: the type of the gradient of each output, or None.
        fixed: whether all sizes but the number of samples are known.
        layouts: where the samples are in each output, or None.
        input_layouts: the same of inputs, by their index.
    """

    inputs: dict
    outputs: tuple
    cotangents: tuple
    fixed: bool
    layouts: list = dataclasses.field(init=False)
    input_layouts: dict = dataclasses.field(init=False)

    def __post_init__(self):
        self.layouts = [
            layout_of(
                output if isinstance(output, At) else cotangent, self.fixed
            )
            for output, cotangent in zip(self.outputs, self.cotangents)
        ]
        self.input_layouts = {
            k: layout_of(input_type, self.fixed)
            for k, input_type in self.inputs.items()
        }

    @property
    def has_samples(self):
        """Whether there are samples in its outputs."""
        return any(
            isinstance(output, (At, Total)) or isinstance(cotangent, At)
            for output, cotangent in zip(self.outputs, self.cotangents)
        )

    @property
    def mixed(self):
        """Whether samples are mixed in its inputs or outputs."""
        return any(
            isinstance(t, Mixed) for t in (*self.inputs.values(), *self.outputs)
        )


def layout_of(tensor_type, fixed):
    """Return where a tensor of a type has samples, or None.

    `fixed`: whether all sizes but the number of samples are known.
    """
    if not isinstance(tensor_type, At):
        return None
    if fixed:
        return Layout(tensor_type.axis, tensor_type.rows, tensor_type.lead)
    if tensor_type.rows != 1 and tensor_type.lead != 1:
        return None
    return Layout(
        tensor_type.axis,
        1 if tensor_type.rows == 1 else None,
        1 if tensor_type.lead == 1 else None,
    )


class Vouching:
    """What the user, or the mode, takes as it is in a traced step.

    Args:
        traced: the traced step.
        before: how many ops its graph had before the backward pass.
        as_batches: classes of layers that may take statistics of the batch.

    Attributes:
        backward_ops: the names of the ops of the backward pass.
    """

    def __init__(self, traced, before, as_batches=()):
        self._traced, self._as_batches = traced, as_batches
        self._operations = traced.graph.get_operations()
        self.backward_ops = {op.name for op in self._operations[before:]}
        self._vouched = set(getattr(traced.model, "vouched", ()))
        # What no layer of the model needs is not asked for each op.
        self._has_per_sample_layers = any(
            isinstance(layer, messages.PER_SAMPLE_LAYERS)
            for layer in traced.layers
        )

    @functools.cached_property
    def origin(self):
        """The `OpOrigin` of the step's ops, which refusals ask."""
        operations = self._operations
        return OpOrigin(
            self._traced.model,
            operations[self._traced.stop :],
            self._traced.scopes,
            backward=self.backward_ops,
            calls={op.name for op in operations if has(op, CALLS)},
            operations=operations,
        )

    def questions(self):
        """Return `is_vouched` and `is_shaped`; None: true of nothing."""
        is_shaped = self.is_shaped if self._has_per_sample_layers else None
        asks = is_shaped or self._as_batches or self._vouched
        return self.is_vouched if asks else None, is_shaped

    def is_shaped(self, name):
        """Whether the graph knows the shapes of an op of this layer better."""
        return isinstance(self.origin.layer(name), messages.PER_SAMPLE_LAYERS)

    def takes_as_batch(self, layer):
        """Whether a layer may take statistics of the batch."""
        return any(is_exactly(layer, base) for base in self._as_batches)

    def is_vouched(self, op, name):
        """Whether the user, or the mode, takes an op as it is."""
        layer = self.origin.caller(name)
        if is_samplewise(layer, messages.PER_SAMPLE_LAYERS):
            return True
        if not self._as_batches and not self._vouched:
            return False
        names = [name]
        if op.type == "AddN":
            # A sum of gradients is of no layer.
            names += [t.op.name for t in op.inputs]
        for op_name in names:
            if self.takes_as_batch(self.origin.caller(op_name)):
                return True
            if any(
                self._vouched.issuperset(n)
                for n in self.origin.layer_names_around(op_name)
            ):
                return True
        return op.type in self._vouched


def prove_step(traced, uses, loss, *, others=(), as_batches=()):
    """Return the `StepProof` of a traced step.

    Args:
        traced: the traced step.
        uses: its `CandidateUses`, differentiated.
        loss: what was differentiated.
        others: further tensors whose types are asked for.
        as_batches: classes of layers that may take statistics of the batch.

    Raises:
        ValueError: no sizes fit the shapes that are not known.
    """
    graph = traced.graph
    outputs = [t for t in loss_tensors(traced.outputs) if t.graph is graph]
    found_gradients = []
    if any(_may_have_custom_gradient(c.op.type) for c in uses.candidates):
        found_gradients = custom_gradients(uses, graph)
    # Now: the ops of these gradients are of the backward pass, too.
    vouching = Vouching(traced, uses.before, as_batches)
    tensors = [loss, *outputs, *others]
    for call in traced.calls:
        tensors += [*call.watched, *_rule_inputs(call, graph)]
        tensors += _known(map(uses.gradient_of, call.watched))
    for candidate in uses.candidates:
        tensors += [t for t in candidate.op.inputs if t.graph is graph]
        tensors += candidate.outputs
        tensors += _known(candidate.cotangents)
    for gradient in found_gradients:
        tensors += gradient.weight_gradients
    is_vouched, is_shaped = vouching.questions()
    try:
        types = type_step(
            graph,
            traced.batch,
            variables=traced.variables,
            operations=traced.operations,
            tensors=tensors,
            is_vouched=is_vouched,
            has_known_shape=is_shaped,
            backward=vouching.backward_ops,
        )
    except ShapesUnknown as error:
        text = messages.shapes_unknown(traced.model, error)
        raise ValueError(text) from None
    return StepProof(
        traced=traced,
        uses=uses,
        loss=loss,
        outputs=outputs,
        vouching=vouching,
        custom_gradients=found_gradients,
        types=types,
        use_types=[
            _use_types(candidate, types) for candidate in uses.candidates
        ],
    )


@dataclasses.dataclass(eq=False)
class StepProof:
    """The types of a step, and what they prove or refuse.

    Attributes:
        traced: the traced step.
        uses: the candidates for uses of weights.
        loss, outputs: what is differentiated, and what the model returned.
        vouching: the `Vouching` of the step.
        custom_gradients: the gradients that layers define for weights.
        types: the `StepTypes`.
        use_types: the `UseTypes` of each candidate.
    """

    traced: Any
    uses: Any
    loss: tf.Tensor
    outputs: list
    vouching: Vouching
    custom_gradients: list
    types: StepTypes
    use_types: list

    @functools.cached_property
    def refusals(self):
        """A list of (layer or None, error)."""
        return list(StepRefusals(self))

    @property
    def origin(self):
        """The `OpOrigin` of the step's ops."""
        return self.vouching.origin

    def of(self, tensor):
        """Return the type of a tensor."""
        return self.types.of(tensor)

    def choose_uses(self):
        """Return the candidates that are uses, as (candidate, `UseTypes`).

        Their `weights` lose the inputs that are behind another use.
        """
        covered, uses = set(), []
        for candidate, use_types in zip(self.uses.candidates, self.use_types):
            op = candidate.op
            candidate.weights = tuple(
                k
                for k in candidate.weights
                if op.inputs[k].ref() not in covered
            )
            is_use = candidate.by_value or use_types.has_samples
            if is_use and candidate.weights:
                uses.append((candidate, use_types))
            if is_use or not candidate.weights:
                covered.update(t.ref() for t in op.outputs)
        return uses

    def watched_layouts(self, call):
        """Return the layout of each tensor that a rule watches."""
        layouts = []
        for tensor in call.watched:
            types = map(
                self.of, _known([tensor, self.uses.gradient_of(tensor)])
            )
            sample_type = next((k for k in types if isinstance(k, At)), None)
            layouts.append(layout_of(sample_type, self.types.fixed))
        return layouts

    def types_at_rules(self):
        """Return the types of what the rules of layers watch or take."""
        types = []
        for call in self.traced.calls:
            for tensor in call.watched:
                cotangent = self.uses.gradient_of(tensor)
                if cotangent is not None:
                    types += [self.of(tensor), self.of(cotangent)]
        for call in self.traced.calls:
            types += map(self.of, _rule_inputs(call, self.traced.graph))
        return types


def _known(tensors):
    return [t for t in tensors if t is not None]


def _rule_inputs(call, graph):
    """Return what a rule takes in addition to the tensors that it watches."""
    return [
        t
        for t in tf.nest.flatten(call.inputs)
        if tf.is_tensor(t) and t.graph is graph
    ]


def _use_types(candidate, types):
    # A weight may be repeated for each sample.
    is_single = types.number in (0, 1) and not has(candidate.op, REPEATS)
    if not candidate.by_value and is_single:
        # A weight of size one looks like one for each sample.
        return UseTypes({}, (), (), fixed=types.fixed)
    data = {}
    if any(d is not None for d in candidate.cotangents):
        data = {k: candidate.op.inputs[k] for k in _data_inputs(candidate)}
    inputs, outputs, cotangents = map(
        types.of_all, (data.values(), candidate.outputs, candidate.cotangents)
    )
    return UseTypes(
        {k: t for k, t in zip(data, inputs) if not isinstance(t, Free)},
        outputs=tuple(outputs),
        cotangents=tuple(cotangents),
        fixed=types.fixed,
    )


def _data_inputs(candidate):
    """Return the indices of inputs in which there may be samples."""
    return [
        k
        for k, t in enumerate(candidate.op.inputs)
        if (k not in candidate.weights or k in candidate.repeated)
        and t.dtype not in (tf.resource, tf.variant, tf.string)
    ]


def _may_have_custom_gradient(op_type):
    """Whether `tf.custom_gradient` may be behind an op."""
    return op_type == CUSTOM_GRADIENT_OP or FACTS[op_type].has_functions
