"""Observations of a step that runs on a few samples, and their verdict."""

import keras
import tensorflow as tf

from keras_pergrad.samples import messages
from keras_pergrad.samples.exchange import Seen
from keras_pergrad.samples.mixing_op import culprit
from keras_pergrad.samples.weight_use import Use


class Observed:
    """The tensors at the candidates of a step.

    Args:
        tape: the tape of the step, or of a trace of its trial.
        loss: its loss.
        uses: its `Uses`, if they were looked for before.

    Attributes:
        tensors: a flat list of all tensors, each once. The other attributes
            refer to them by their places.
        behind: the ops of the loss.
        gradients: as from `Uses.gradients`, with those of what rules watch.
    """

    def __init__(self, tape, loss, uses=None):
        self.tensors, self._places = [], {}
        self.behind = set(tape.behind)
        self.uses = uses = uses or tape.uses()
        self.calls = tape.calls
        watched = [t for call in tape.calls for t in call.watched]
        self.gradients = at_ops, at_rules = uses.gradients(loss, watched)
        self.watched = [
            (self._keep(t), self._keep(g)) for t, g in zip(watched, at_rules)
        ]
        self.at = [
            self._candidate(c, deltas)
            for c, deltas in zip(uses.candidates, at_ops)
        ]
        self.outputs = [
            self._keep(t)
            for t in tf.nest.flatten(tape.outputs)
            if tf.is_tensor(t) and t.dtype.is_floating
        ]

    def _candidate(self, candidate, deltas):
        if not candidate.by_value and not candidate.by_size:
            return {}, [], []
        data = {}
        if any(d is not None for d in deltas):
            inputs = candidate.op.inputs
            data = {k: self._keep(inputs[k]) for k in candidate.data}
        outputs = [self._keep(t) for t in candidate.outputs]
        return data, outputs, [self._keep(d) for d in deltas]

    def _keep(self, tensor):
        if tensor is None:
            return None
        tensor = tf.convert_to_tensor(tensor)
        place = self._places.setdefault(id(tensor), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(tensor)
        return place


class Findings:
    """The findings of the runs about the observed tensors."""

    def __init__(self, observed, runs):
        self.observed = observed
        self._runs, self._motions = runs, {}
        self.seen = tuple(
            Seen(
                c.op.type,
                {k: self._motion(t) for k, t in data.items()},
                tuple(map(self._motion, outputs)),
                tuple(map(self._motion, deltas)),
            )
            for c, (data, outputs, deltas) in zip(
                observed.uses.candidates, observed.at
            )
        )
        # Tensors that rules watch must have the samples on the first axis.
        owners = (c.layer for c in observed.calls for _ in c.watched)
        self.misplaced = [
            layer
            for layer, (value, delta) in zip(owners, observed.watched)
            if delta is not None and not _leads(self._motion(value))
        ]

    def _motion(self, place):
        if place is None:
            return None
        if place not in self._motions:
            self._motions[place] = self._runs.motion(place)
        return self._motions[place]

    def refusals(self, trial):
        """Yield (layer, error) for what cannot be served."""
        beside, backward = [], False
        forward = any(self._motion(k).mixed for k in self.observed.outputs)
        for candidate, seen in zip(self.observed.uses.candidates, self.seen):
            if not candidate.by_value and not seen.has_samples:
                continue
            pairs = list(zip(seen.outputs, seen.deltas))
            alive = [(o, d) for o, d in pairs if d is not None]
            if not alive:
                continue
            if candidate.op in self.observed.behind and alive[0][0].mixed:
                beside.append(candidate)
                continue
            forward |= any(m.mixed for m in seen.data.values())
            forward |= any(o.mixed for o, _ in alive)
            backward |= any(d.mixed for _, d in alive)
        for value, delta in self.observed.watched:
            if delta is not None and not self.misplaced:
                forward |= self._motion(value).mixed
                backward |= self._motion(delta).mixed
        # The denominator of a loss may follow the padding, so only the
        # forward pass is checked.
        padding = not forward and any(
            map(self._runs.mixes_padding, self.observed.outputs)
        )
        if forward or backward or padding:
            runs = type(self._runs)
            mixes = runs.mixes_padding if padding else runs.mixes
            found, error = culprit(trial, forward or padding, mixes)
            yield found, error
            normalization = keras.layers.BatchNormalization
            if isinstance(found, normalization):
                # Later tensors are all mixed: a run shows only the first.
                model = trial.like.model
                for layer in model._flatten_layers():
                    if isinstance(layer, normalization) and layer.trainable:
                        text = messages.mixes(model, layer, None, False)
                        yield layer, ValueError(text)
        elif self.misplaced:
            layer = self.misplaced[0]
            yield layer, ValueError(messages.misplaced(layer))
        for candidate in beside:
            variables = trial.like.variables
            use = Use(
                candidate, None, (), None, None, self.observed.uses, variables
            )
            yield None, ValueError(messages.no_samples(use))


def _leads(motion):
    layout = motion.layout
    return layout is not None and layout.axis == 0 and layout.merged is None
