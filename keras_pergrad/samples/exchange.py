"""Findings about a model after single samples of a batch were exchanged."""

import dataclasses
import itertools

from keras_pergrad.samples import messages


@dataclasses.dataclass(frozen=True)
class Seen:
    """The motions at one op that takes tensors of weights.

    Attributes:
        kind: the op's type.
        data: place of an input to its `Motion`.
        outputs: a `Motion` for each floating-point output.
        deltas: a `Motion` for the gradient of each output, or None if the
            output has no gradient.
    """

    kind: str
    data: dict = dataclasses.field(default_factory=dict)
    outputs: tuple = ()
    deltas: tuple = ()

    @property
    def has_samples(self):
        """Whether there are samples in its outputs."""
        return any(m.layout is not None or m.moved for m in self.outputs)

    @property
    def mixed(self):
        """Whether samples are mixed in its inputs or outputs."""
        return any(m.mixed for m in (*self.data.values(), *self.outputs))

    def layout(self, k):
        """Return where the samples are in output k, or None if not known."""
        delta, output = self.deltas[k], self.outputs[k]
        known = [delta, output] if delta is not None else [output]
        found = next((m for m in known if m.layout and m.moved), output)
        if found.layout is None or found.ordered:
            return found.layout
        # Merged axes, and nothing moved: an input may tell the order.
        for m in self.data.values():
            same = m.layout is not None and (
                m.layout.axis == found.layout.axis
                and m.layout.count == found.layout.count
            )
            if same and m.ordered:
                return m.layout
        return None


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What was found for a model and a kind of batch.

    Attributes:
        seen: a `Seen` for each `Candidate`, in order.
        refusals: a list of (layer or None, error).
        assigned: the paths of the trainable variables that the forward pass
            assigns.
        counted: whether it assigns variables that Keras does not know.
        counting: the indices, among the non-trainable variables, of the
            counters: it assigns these whatever the batch is.
    """

    seen: tuple
    refusals: tuple = ()
    assigned: tuple = ()
    counted: bool = False
    counting: tuple = ()

    def fits(self, uses):
        """Whether a step has the ops that the trial had."""
        return next(self._others(uses), None) is None

    def _others(self, uses):
        for candidate, seen in itertools.zip_longest(
            uses.candidates, self.seen
        ):
            if not candidate or not seen or candidate.op.type != seen.kind:
                yield candidate, seen

    def uses_in(self, uses):
        """Return (candidate, `Seen`) for each candidate that is a use.

        Args:
            uses: `Uses` of the step.

        Raises:
            ValueError: the step has other ops than the trial had.
        """
        for candidate, seen in self._others(uses):
            raise ValueError(messages.other_ops(candidate, seen))
        behind, found = set(), []
        for candidate, seen in zip(uses.candidates, self.seen):
            op = candidate.op
            candidate.weights = tuple(
                k for k in candidate.weights if id(op.inputs[k]) not in behind
            )
            is_use = candidate.by_value or seen.has_samples
            if is_use and candidate.weights:
                found.append((candidate, seen))
            if is_use or not candidate.weights:
                behind.update(map(id, op.outputs))
        return found
