"""The proof that a step keeps its samples apart, and what it refuses."""

import dataclasses
import functools

import keras
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
    is_linear,
)
from keras_pergrad.proof.step_types import StepTypes
from keras_pergrad.proof.tensor_types import (
    DIVIDED,
    FREE,
    At,
    Divisor,
    Free,
    Mixed,
    Total,
)

# Refusals of what the proof of a step does not show.


class StepRefusals:
    """A `StepProof`, asked for what it does not prove."""

    def __init__(self, proof, traced, uses):
        self._proof, self._traced, self._uses = proof, traced, uses
        self._refused = set()

    def __iter__(self):
        """Yield (layer, error) for what cannot be served, the first first."""
        for layer, error in self._refusals():
            hint = self._vouched_hint()
            yield layer, ValueError(f"{error} {hint}") if hint else error

    def _vouched_hint(self):
        """Return a hint at a vouched layer that loses the samples' axis."""
        for op_type, name in reversed(self._proof.types.without_axis):
            layer = self._proof.origin.layer(name)
            if layer is not None and not self._proof.takes_as_batch(layer):
                return messages.behind_vouched(layer, op_type, name)
        return None

    def _refusals(self):
        if self._traced.overridden:
            # The ops of functions, which are inlined there, are among them.
            text = messages.overridden_gradient(self._traced.overridden[0])
            yield None, ValueError(text)
        yield from self._chance_refusals()
        for effect in self._proof.types.effects:
            yield from self._mixed_refusals(effect)
        for use, types in zip(self._uses.candidates, self._proof.use_types):
            if use.by_value or types.has_samples:
                yield from self._use_refusals(use, types)
        yield from self._custom_gradient_refusals()
        for rule_types in self._proof.types_at_rules():
            for rule_type in rule_types:
                if isinstance(rule_type, Mixed):
                    yield from self._mixed_refusals(rule_type)
        yield from self._loss_refusals()

    def _mixed_refusals(self, mixed):
        """Refuse what mixes samples, each op once."""
        if mixed not in self._refused:
            self._refused.add(mixed)
            yield self._proof.origin.refusal(mixed)

    def _chance_refusals(self):
        """Refuse layers that mix in some steps alone."""
        layers = self._traced.layers
        for layer in layers if self._traced.training else ():
            is_mixing = isinstance(layer, messages.MIX_BY_CHANCE)
            if is_mixing and not self._proof.takes_as_batch(layer):
                yield layer, ValueError(messages.mixes_by_chance(layer))

    def _use_refusals(self, candidate, use_types):
        """Refuse a use whose samples are mixed, or no longer apart."""
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(
                use_types.outputs, use_types.cotangents
            )
            if cotangent is not None
        ]
        if not pairs:
            return
        types = [
            *use_types.inputs.values(),
            *(k for pair in pairs for k in pair),
        ]
        mixed = next((k for k in types if isinstance(k, Mixed)), None)
        if mixed is None:
            yield from self._misplaced_refusals(candidate, pairs)
            return
        for layer, error in self._mixed_refusals(mixed):
            yield layer, error
            yield from self._batch_norm_refusals(layer, mixed)

    def _loss_refusals(self):
        """Refuse a loss that mixes, and outputs that others multiply."""
        proof = self._proof
        if proof.types.number in (0, 1):
            return
        loss_type = proof.of(proof.loss)
        if isinstance(loss_type, Mixed):
            yield from self._mixed_refusals(loss_type)
        if any(proof.of(t).flags & DIVIDED for t in proof.outputs):
            text = messages.divided_outputs(self._traced.model)
            yield None, ValueError(text)

    def _batch_norm_refusals(self, layer, mixed):
        """Refuse all other layers that are known to mix: all is mixed there."""
        batch_norm = keras.layers.BatchNormalization
        if not isinstance(layer, batch_norm):
            return
        model = self._traced.model
        for other in self._traced.layers:
            is_mixing = isinstance(other, batch_norm) and other.trainable
            if is_mixing and other is not layer:
                yield other, ValueError(messages.mixing_op(model, other, mixed))

    def _custom_gradient_refusals(self):
        """Refuse custom gradients of weights that are no sum over samples."""
        proof = self._proof
        if proof.types.number in (0, 1):
            return
        for custom in proof.custom_gradients:
            op = custom.candidate.op
            if proof.is_vouched(op, op.name):
                continue
            types = [proof.of(t) for t in custom.weight_gradients]
            mixed = next((k for k in types if isinstance(k, Mixed)), None)
            if mixed is not None:
                yield from self._mixed_refusals(mixed)
            elif custom.weight_gradients:
                types = proof.types.types_if_linear(
                    custom.weight_gradients, custom.output_gradients
                )
                if not all(map(is_linear, types, custom.weight_gradients)):
                    layer = proof.origin.layer(op.name)
                    text = messages.custom_gradient(layer, op)
                    yield layer, proof.origin.error(text, op.name)

    def _misplaced_refusals(self, candidate, pairs):
        """Refuse a use where the samples are no longer apart."""
        # A single sample has no other.
        misplaced = next((pair for pair in pairs if _is_misplaced(*pair)), None)
        if misplaced is None or self._proof.types.number in (0, 1):
            return
        origin, name = self._proof.origin, candidate.op.name
        if self._proof.takes_as_batch(origin.caller(name)):
            return
        if isinstance(misplaced[0], (Total, Divisor)):
            variables = self._traced.variables
            text = messages.no_samples(candidate, self._uses, variables)
            yield None, origin.error(text, name)
        else:
            text = messages.loss_couples(self._traced.model, candidate.op)
            yield origin.layer(name), origin.error(text, name)


def _is_misplaced(output, cotangent):
    """Whether an output and its gradient have no samples at one place."""
    if isinstance(output, (Total, Divisor)) or isinstance(cotangent, Total):
        return True
    if not isinstance(output, At) or not isinstance(cotangent, At):
        return False
    places = [(t.axis, t.rows, t.lead) for t in (output, cotangent)]
    return places[0] != places[1]


# The proof that a step keeps its samples apart, from the types of its ops.


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


class StepProof:
    """The types of a step, and what they prove or refuse.

    Args:
        traced: the traced step.
        uses: the candidates for uses of weights.
        all_cotangents: the cotangents at the candidates' outputs, and at what
            the rules of layers watch.
        loss: what is differentiated.
        others: further tensors whose types are asked for.
        as_batches: classes of layers that may take statistics of the batch.

    Attributes:
        types: the `StepTypes`.
        use_types: the `UseTypes` of each candidate.
        loss, outputs: what is differentiated, and what the model returned.
        custom_gradients: the gradients that layers define for weights.
        refusals: a list of (layer or None, error).
    """

    def __init__(
        self, traced, uses, all_cotangents, loss, others=(), as_batches=()
    ):
        self._traced, self._uses = traced, uses
        graph, calls = traced.graph, traced.calls
        self.loss = loss
        self.outputs = [
            t for t in loss_tensors(traced.outputs) if t.graph is graph
        ]
        self._as_batches = as_batches
        self._vouched = set(getattr(traced.model, "vouched", ()))
        op_cotangents, rule_cotangents = all_cotangents
        watched = [t for call in calls for t in call.watched]
        self._watched = list(zip(watched, rule_cotangents))
        tensors = [t for pair in self._watched for t in pair if t is not None]
        for candidate, cotangents in zip(uses.candidates, op_cotangents):
            tensors += [t for t in candidate.op.inputs if t.graph is graph]
            tensors += candidate.outputs
            tensors += [d for d in cotangents if d is not None]
        for call in calls:
            tensors += self._rule_inputs(call)
        self.custom_gradients = []
        if any(
            _may_have_custom_gradient(candidate.op.type)
            for candidate in uses.candidates
        ):
            self.custom_gradients = custom_gradients(
                uses.candidates, op_cotangents, graph
            )
        for gradient in self.custom_gradients:
            tensors += gradient.weight_gradients
        tensors += [loss, *self.outputs, *others]
        operations = graph.get_operations()
        backward_ops = {op.name for op in operations[uses.before :]}
        self._operations = operations, backward_ops
        batch = traced.batch
        # What no layer of the model needs is not asked for each op.
        has_per_sample_layers = any(
            isinstance(layer, messages.PER_SAMPLE_LAYERS)
            for layer in traced.layers
        )
        vouched = self._as_batches or self._vouched
        asks_vouching = has_per_sample_layers or bool(vouched)
        try:
            self.types = StepTypes(
                graph,
                batch,
                traced.variables,
                tensors,
                traced.operations,
                self.is_vouched if asks_vouching else None,
                self._is_shaped if has_per_sample_layers else None,
                backward_ops,
            )
        except ShapesUnknown as error:
            text = messages.shapes_unknown(traced.model, error)
            raise ValueError(text) from None
        self.use_types = [
            self._use_types(candidate, cotangents)
            for candidate, cotangents in zip(uses.candidates, op_cotangents)
        ]
        self.refusals = list(StepRefusals(self, traced, uses))

    @functools.cached_property
    def origin(self):
        """The `OpOrigin` of the step's ops, which refusals ask."""
        operations, backward_ops = self._operations
        return OpOrigin(
            self._traced.model,
            operations[self._traced.stop :],
            self._traced.scopes,
            backward_ops,
            {op.name for op in operations if has(op, CALLS)},
            operations,
        )

    def _is_shaped(self, name):
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

    def _rule_inputs(self, call):
        """Return what a rule takes besides the tensors that it watches."""
        return [
            t
            for t in tf.nest.flatten(call.inputs)
            if tf.is_tensor(t) and t.graph is self._traced.graph
        ]

    def of(self, tensor):
        """Return the type of a tensor."""
        return self.types.by_name.get(tensor.name, FREE)

    def choose_uses(self):
        """Return the candidates that are uses, as (candidate, `UseTypes`).

        Their `weights` lose the inputs that are behind another use.
        """
        covered, uses = set(), []
        for candidate, use_types in zip(self._uses.candidates, self.use_types):
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
        cotangents = {t.ref(): cotangent for t, cotangent in self._watched}
        layouts = []
        for tensor in call.watched:
            cotangent, types = cotangents[tensor.ref()], [self.of(tensor)]
            types += [] if cotangent is None else [self.of(cotangent)]
            sample_type = next((k for k in types if isinstance(k, At)), None)
            layouts.append(layout_of(sample_type, self.types.fixed))
        return layouts

    def types_at_rules(self):
        """Return the types of what the rules of layers watch or take."""
        return [
            *(
                [self.of(t), self.of(cotangent)]
                for t, cotangent in self._watched
                if cotangent is not None
            ),
            *(
                [self.of(t) for t in self._rule_inputs(c)]
                for c in self._traced.calls
            ),
        ]

    def _use_types(self, candidate, cotangents):
        # A weight may be repeated for each sample.
        is_single = self.types.number in (0, 1) and not has(
            candidate.op, REPEATS
        )
        if not candidate.by_value and is_single:
            # A weight of size one looks like one for each sample.
            return UseTypes({}, (), (), self.types.fixed)
        inputs = {}
        if any(d is not None for d in cotangents):
            inputs = {
                k: input_type
                for k in _data_inputs(candidate)
                if not isinstance(
                    input_type := self.of(candidate.op.inputs[k]), Free
                )
            }
        return UseTypes(
            inputs,
            tuple(self.of(t) for t in candidate.outputs),
            tuple(None if d is None else self.of(d) for d in cotangents),
            self.types.fixed,
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
