"""The proof that a step keeps its samples apart, and what it refuses."""

import dataclasses
import functools
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.losses.losses import loss_tensors
from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.proof import messages
from keras_pergrad.proof.op_facts import CALLS, FACTS
from keras_pergrad.proof.origins import OWN, OpOrigin, is_linear, own_gradients
from keras_pergrad.proof.step_types import ShapesUnknown, StepTypes
from keras_pergrad.proof.tensor_types import (
    DIVIDED,
    FREE,
    At,
    Divisor,
    Free,
    Mixed,
    Total,
)
from keras_pergrad.uses.layer_rules import registry
from keras_pergrad.uses.op_rules import Layout

# Refusals of what the proof of a step does not show.


class StepRefusals:
    """A `StepProof`, asked for what it does not prove."""

    def __init__(self, proof, traced, uses):
        self._proof, self._traced, self._uses = proof, traced, uses
        self._told = set()

    def __iter__(self):
        """Yield (layer, error) for what cannot be served, the first first."""
        for layer, error in self._found():
            hint = self._of_vouched()
            yield layer, ValueError(f"{error} {hint}") if hint else error

    def _of_vouched(self):
        """Return a hint at a vouched layer that loses the samples' axis."""
        for op_type, name in reversed(self._proof.types.without_place):
            layer = self._proof.origin.layer(name)
            if layer is not None and not self._proof.takes_as_batch(layer):
                return messages.behind_vouched(layer, op_type, name)
        return None

    def _found(self):
        yield from self._by_chance()
        for kind in self._proof.types.effects:
            yield from self._mixed(kind)
        for one, at in zip(self._uses.candidates, self._proof.at):
            if one.by_value or at.has_samples:
                yield from self._of_use(one, at)
        yield from self._own_gradients()
        for kinds in self._proof.types_at_rules():
            for kind in kinds:
                if isinstance(kind, Mixed):
                    yield from self._mixed(kind)
        yield from self._of_loss()

    def _mixed(self, kind):
        """Refuse what mixes, once; that a layer does so comes next."""
        if kind not in self._told:
            self._told.add(kind)
            yield self._proof.origin.refusal(kind)

    def _by_chance(self):
        """Refuse layers that mix in some steps alone."""
        layers = layers_of(self._traced.model)
        for layer in layers if self._traced.training else ():
            mixes = isinstance(layer, messages.MIX_BY_CHANCE)
            if mixes and not self._proof.takes_as_batch(layer):
                yield layer, ValueError(messages.mixes_by_chance(layer))

    def _of_use(self, one, at):
        """Refuse a use whose samples are mixed, or no longer apart."""
        pairs = [(o, d) for o, d in zip(at.outputs, at.deltas) if d is not None]
        if not pairs:
            return
        kinds = [*at.inputs.values(), *(k for pair in pairs for k in pair)]
        bad = next((k for k in kinds if isinstance(k, Mixed)), None)
        if bad is None:
            yield from self._misplaced(one, pairs)
            return
        for layer, error in self._mixed(bad):
            yield layer, error
            yield from self._like(layer, bad)

    def _of_loss(self):
        """Refuse a loss that mixes, and outputs that others multiply."""
        proof = self._proof
        if proof.types.number in (0, 1):
            return
        kind = proof.of(proof.loss)
        if isinstance(kind, Mixed):
            yield from self._mixed(kind)
        if any(proof.of(t).flags & DIVIDED for t in proof.outputs):
            text = messages.divided_outputs(self._traced.model)
            yield None, ValueError(text)

    def _like(self, layer, bad):
        """Refuse all other layers that are known to mix: all is mixed there."""
        kind = keras.layers.BatchNormalization
        if not isinstance(layer, kind):
            return
        model = self._traced.model
        for other in layers_of(model):
            mixes = isinstance(other, kind) and other.trainable
            if mixes and other is not layer:
                yield other, ValueError(messages.mixes(model, other, bad))

    def _own_gradients(self):
        """Refuse own gradients of weights that are no sum over samples."""
        proof = self._proof
        if proof.types.number in (0, 1):
            return
        for own in proof.own:
            op = own.candidate.op
            if proof.is_vouched(op, op.name):
                continue
            kinds = [proof.of(t) for t in own.gradients]
            bad = next((k for k in kinds if isinstance(k, Mixed)), None)
            if bad is not None:
                yield from self._mixed(bad)
            elif own.gradients:
                kinds = proof.types.linear(own.gradients, own.given)
                if not all(map(is_linear, kinds, own.gradients)):
                    layer = proof.origin.layer(op.name)
                    yield layer, ValueError(messages.own_gradient(layer, op))

    def _misplaced(self, one, pairs):
        """Refuse a use where the samples are no longer apart."""
        # A single sample has no other.
        wrong = next((pair for pair in pairs if _is_misplaced(*pair)), None)
        if wrong is None or self._proof.types.number in (0, 1):
            return
        origin, name = self._proof.origin, one.op.name
        if self._proof.takes_as_batch(origin.caller(name)):
            return
        if isinstance(wrong[0], (Total, Divisor)):
            variables = self._traced.variables
            text = messages.no_samples(one, self._uses, variables)
            yield None, ValueError(text)
        else:
            text = messages.loss_couples(self._traced.model, one.op)
            yield origin.layer(name), ValueError(text)


def _is_misplaced(output, delta):
    """Whether an output and its gradient have no samples at one place."""
    if isinstance(output, (Total, Divisor)) or isinstance(delta, Total):
        return True
    if not isinstance(output, At) or not isinstance(delta, At):
        return False
    places = [(t.axis, t.rows, t.lead) for t in (output, delta)]
    return places[0] != places[1]


# The proof that a step keeps its samples apart, from the types of its ops.


#: Ops that may repeat a weight for each sample.
_REPEAT = {"BroadcastTo", "Tile"}


@dataclasses.dataclass
class UseTypes:
    """The types at one op that takes tensors of weights.

    Attributes:
        inputs: the index of an input of samples → its type.
        outputs: the type of each output of the candidate.
        deltas: the type of the gradient of each output, or None.
        fixed: whether all sizes but the number of samples are known.
        find: gives the type of any tensor of the step; None: it has none.
        layouts: where the samples are in each output, or None.
        input_layouts: the same of inputs, by their index.
    """

    inputs: dict
    outputs: tuple
    deltas: tuple
    fixed: bool
    find: Any = None
    layouts: list = dataclasses.field(init=False)
    input_layouts: dict = dataclasses.field(init=False)

    def __post_init__(self):
        self.layouts = [
            layout_of(o if isinstance(o, At) else d, self.fixed)
            for o, d in zip(self.outputs, self.deltas)
        ]
        self.input_layouts = {
            k: layout_of(kind, self.fixed) for k, kind in self.inputs.items()
        }

    @property
    def has_samples(self):
        """Whether there are samples in its outputs."""
        return any(
            isinstance(o, (At, Total)) or isinstance(d, At)
            for o, d in zip(self.outputs, self.deltas)
        )

    @property
    def mixed(self):
        """Whether samples are mixed in its inputs or outputs."""
        return any(
            isinstance(t, Mixed) for t in (*self.inputs.values(), *self.outputs)
        )

    def samples_in(self, tensor):
        """Whether a tensor of the step has samples; None: it is not known."""
        kind = self.find(tensor)
        return None if kind is None else isinstance(kind, At)

    def layout_in(self, tensor):
        """Return where the samples are in any tensor of the step, or None."""
        return layout_of(self.find(tensor), self.fixed)


def layout_of(kind, fixed):
    """Return where a tensor of a type has samples, or None.

    `fixed`: whether all sizes but the number of samples are known.
    """
    if not isinstance(kind, At):
        return None
    if fixed:
        return Layout(kind.axis, kind.rows, kind.lead)
    if kind.rows != 1 and kind.lead != 1:
        return None
    return Layout(
        kind.axis,
        1 if kind.rows == 1 else None,
        1 if kind.lead == 1 else None,
    )


class StepProof:
    """What types say of a step.

    Layers of the classes `as_batches` may take statistics of the batch.

    Attributes:
        types: the `StepTypes`.
        at: the `UseTypes` of each candidate.
        loss, outputs: what is differentiated, and what the model returned.
        own: the gradients of weights that layers define themselves.
        refusals: a list of (layer or None, error).
    """

    def __init__(self, traced, uses, gradients, loss, others=(), as_batches=()):
        self._traced, self._uses = traced, uses
        graph, calls = traced.graph, traced.calls
        self.loss = loss
        self.outputs = [
            t for t in loss_tensors(traced.outputs) if t.graph is graph
        ]
        self._as_batches = as_batches
        self._vouched = set(getattr(traced.model, "vouched", ()))
        at_ops, at_rules = gradients
        watched = [t for call in calls for t in call.watched]
        self._watched = list(zip(watched, at_rules))
        wanted = [t for pair in self._watched for t in pair if t is not None]
        for one, deltas in zip(uses.candidates, at_ops):
            wanted += [t for t in one.op.inputs if t.graph is graph]
            wanted += one.outputs
            wanted += [d for d in deltas if d is not None]
        for call in calls:
            wanted += self._taken(call)
        self.own = []
        if any(_may_be_own(one.op.type) for one in uses.candidates):
            self.own = own_gradients(uses.candidates, at_ops, graph)
        for own in self.own:
            wanted += own.gradients
        wanted += [loss, *self.outputs, *others]
        operations = graph.get_operations()
        added = {op.name for op in operations[uses.before :]}
        self._made = operations, added
        batch = traced.batch
        # What no layer of the model needs is not asked for each op.
        alone = any(
            isinstance(layer, messages.EACH_ALONE)
            for layer in layers_of(traced.model)
        )
        vouches = alone or bool(self._as_batches) or bool(self._vouched)
        try:
            self.types = StepTypes(
                graph,
                batch,
                traced.variables,
                wanted,
                traced.operations,
                self.is_vouched if vouches else None,
                self._is_shaped if alone else None,
                added,
            )
        except ShapesUnknown as error:
            text = messages.shapes_unknown(traced.model, error)
            raise ValueError(text) from None
        self.at = [
            self._at(one, deltas)
            for one, deltas in zip(uses.candidates, at_ops)
        ]
        self.refusals = list(StepRefusals(self, traced, uses))

    @functools.cached_property
    def origin(self):
        """The `OpOrigin` of the step's ops, which refusals ask."""
        operations, added = self._made
        return OpOrigin(
            self._traced.model,
            operations[self._traced.stop :],
            self._traced.scopes,
            added,
            {op.name for op in operations if op.type in CALLS},
        )

    def _is_shaped(self, name):
        """Whether the graph knows the shapes of an op of this layer better."""
        return isinstance(self.origin.layer(name), messages.EACH_ALONE)

    def takes_as_batch(self, layer):
        """Whether a layer may take statistics of the batch."""
        return any(
            registry.is_exactly(layer, base) for base in self._as_batches
        )

    def is_vouched(self, op, name):
        """Whether the user, or the mode, takes an op as it is."""
        layer = self.origin.caller(name)
        if registry.treats_each_alone(layer, messages.EACH_ALONE):
            return True
        if not self._as_batches and not self._vouched:
            return False
        names = [name]
        if op.type == "AddN":
            # A sum of gradients is of no layer.
            names += [t.op.name for t in op.inputs]
        for one in names:
            if self.takes_as_batch(self.origin.caller(one)):
                return True
            if any(
                self._vouched.issuperset(n) for n in self.origin.around(one)
            ):
                return True
        return op.type in self._vouched

    def _taken(self, call):
        """Return what a rule takes besides the tensors that it watches."""
        return [
            t
            for t in tf.nest.flatten(call.inputs)
            if tf.is_tensor(t) and t.graph is self._traced.graph
        ]

    def of(self, tensor):
        """Return the type of a tensor."""
        return self.types.kinds.get(tensor.name, FREE)

    def choose_uses(self):
        """Keep what is a use, and return it as (candidate, `UseTypes`).

        Its `weights` lose the inputs that are behind another use.
        """
        behind, uses = set(), []
        for one, at in zip(self._uses.candidates, self.at):
            op = one.op
            one.weights = tuple(
                k for k in one.weights if id(op.inputs[k]) not in behind
            )
            is_use = one.by_value or at.has_samples
            if is_use and one.weights:
                uses.append((one, at))
            if is_use or not one.weights:
                behind.update(map(id, op.outputs))
        return uses

    def watched_layouts(self, call):
        """Return the layout of each tensor that a rule watches."""
        places = {id(t): k for k, (t, _) in enumerate(self._watched)}
        layouts = []
        for tensor in call.watched:
            value, delta = self._watched[places[id(tensor)]]
            kinds = [self.of(value)]
            kinds += [] if delta is None else [self.of(delta)]
            kind = next((k for k in kinds if isinstance(k, At)), None)
            layouts.append(layout_of(kind, self.types.fixed))
        return layouts

    def types_at_rules(self):
        """Return the types of what the rules of layers watch or take."""
        return [
            *(
                [self.of(t), self.of(delta)]
                for t, delta in self._watched
                if delta is not None
            ),
            *([self.of(t) for t in self._taken(c)] for c in self._traced.calls),
        ]

    def _at(self, one, deltas):
        single = self.types.number in (0, 1) and one.op.type not in _REPEAT
        if not one.by_value and single:
            # A weight of size one looks like one for each sample.
            return UseTypes({}, (), (), self.types.fixed, self.types.find)
        inputs = {}
        if any(d is not None for d in deltas):
            inputs = {
                k: kind
                for k in _data(one)
                if not isinstance(kind := self.of(one.op.inputs[k]), Free)
            }
        return UseTypes(
            inputs,
            tuple(self.of(t) for t in one.outputs),
            tuple(None if d is None else self.of(d) for d in deltas),
            self.types.fixed,
            self.types.find,
        )


def _data(candidate):
    """Return the indices of inputs in which there may be samples."""
    return [
        k
        for k, t in enumerate(candidate.op.inputs)
        if (k not in candidate.weights or k in candidate.repeated)
        and t.dtype not in (tf.resource, tf.variant, tf.string)
    ]


def _may_be_own(op_type):
    """Whether `tf.custom_gradient` may be behind an op."""
    return op_type == OWN or FACTS[op_type].has_functions
