"""Refusals of what the proof of a step does not show."""

import keras

from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.samples import messages
from keras_pergrad.samples.own_gradients import is_linear
from keras_pergrad.samples.types.tensor_types import (
    DIVIDED,
    At,
    Divisor,
    Mixed,
    Total,
)


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
