"""Refusals of what the proof of a step does not show."""

import keras

from keras_pergrad.proof import messages
from keras_pergrad.proof.origins import is_linear
from keras_pergrad.proof.tensor_types import (
    DIVIDED,
    At,
    Divisor,
    Mixed,
    Total,
)


class StepRefusals:
    """A `StepProof`, asked for what it does not prove."""

    def __init__(self, proof):
        self._proof, self._traced, self._uses = proof, proof.traced, proof.uses
        self._refused = set()

    def __iter__(self):
        """Yield (layer, error) for what cannot be served, the first first."""
        for layer, error in self._refusals():
            hint = self._vouched_hint()
            yield layer, ValueError(f"{error} {hint}") if hint else error

    def _vouched_hint(self):
        """Return a hint at a vouched layer that loses the samples' axis."""
        for op_type, name in reversed(self._proof.types.typing.without_axis):
            layer = self._proof.origin.layer(name)
            if layer is not None and not self._proof.vouching.takes_as_batch(
                layer
            ):
                return messages.behind_vouched(layer, op_type, name)
        return None

    def _refusals(self):
        if self._traced.overridden:
            # The ops of functions, which are inlined there, are among them.
            text = messages.overridden_gradient(self._traced.overridden[0])
            yield None, ValueError(text)
        yield from self._chance_refusals()
        for effect in self._proof.types.typing.effects:
            yield from self._mixed_refusals(effect)
        for use, types in zip(self._uses.candidates, self._proof.use_types):
            if use.by_value or types.has_samples:
                yield from self._use_refusals(use, types)
        yield from self._custom_gradient_refusals()
        at_rules = self._proof.types_at_rules() if self._traced.calls else ()
        for rule_type in at_rules:
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
            if is_mixing and not self._proof.vouching.takes_as_batch(layer):
                yield layer, ValueError(messages.mixes_by_chance(layer))

    def _use_refusals(self, candidate, use_types):
        """Refuse a use whose samples are mixed, or no longer separate."""
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
        tensors = [proof.loss, *proof.outputs]
        loss_type, *output_types = proof.types.of_all(tensors)
        if isinstance(loss_type, Mixed):
            yield from self._mixed_refusals(loss_type)
        if any(t.flags & DIVIDED for t in output_types):
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
            if proof.vouching.is_vouched(op, op.name):
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
        """Refuse a use where the samples are no longer separate."""
        # A single sample has no other.
        misplaced = next((pair for pair in pairs if _is_misplaced(*pair)), None)
        if misplaced is None or self._proof.types.number in (0, 1):
            return
        origin, name = self._proof.origin, candidate.op.name
        if self._proof.vouching.takes_as_batch(origin.caller(name)):
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
