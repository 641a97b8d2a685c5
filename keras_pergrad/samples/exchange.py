"""What a few samples show of a model: where they are, and whether they mix.

The step is traced once aside and run on three samples, on the same with one
of them exchanged, and on five. From what moves in the tensors at each use of
a weight, and in the gradients there, follows where these tensors hold the
samples (see `motion`). What mixes samples, on the way forward or back, is
refused by name. Whatever the runs assign is put back.

Private name in use: `keras.src.backend.common.global_state`.
"""

import dataclasses
import functools
import itertools
import weakref

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state

from keras_pergrad.batches import first_tensor
from keras_pergrad.factors.xla import in_xla
from keras_pergrad.losses import components
from keras_pergrad.model_state import (
    assigned_variables,
    losses_kept,
    random_state_kept,
    run_and_restore,
)
from keras_pergrad.rules.registry import find_rule
from keras_pergrad.samples import messages, values
from keras_pergrad.samples.motion import SAMPLES, watch
from keras_pergrad.samples.use import Use

_FOUND = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Seen:
    """The motions at one op that takes tensors of weights.

    Attributes:
        kind: the op's type.
        data: by the place of an input its `Motion`.
        outputs: a `Motion` for each floating-point output.
        deltas: one for the gradient of each output; None: it has none.
    """

    kind: str
    data: dict = dataclasses.field(default_factory=dict)
    outputs: tuple = ()
    deltas: tuple = ()

    @property
    def has_samples(self):
        """Whether there are samples in its outputs."""
        return any(m.layout is not None or m.moved for m in self.outputs)

    def layout(self, k):
        """Where the samples are in output k, or None where it is not known."""
        delta, output = self.deltas[k], self.outputs[k]
        known = [delta, output] if delta is not None else [output]
        found = next((m for m in known if m.layout and m.moved), output)
        if found.layout is None or found.ordered:
            return found.layout
        # Merged axes, and nothing moved: what goes in may tell the order.
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
    """

    seen: tuple
    refusals: tuple = ()
    assigned: tuple = ()
    counted: bool = False

    def uses_in(self, uses):
        """Return (candidate, `Seen`) for each candidate that is a use.

        Args:
            uses: `Uses` of the step.

        Raises:
            ValueError: the step has other ops than the trial had.
        """
        pairs = itertools.zip_longest(uses.candidates, self.seen)
        for candidate, seen in pairs:
            if not candidate or not seen or candidate.op.type != seen.kind:
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


def exchange_of(tape):
    """Return the `Exchange` for a tape's model and batch.

    It is kept as long as the model, its loss, its layers' rules and what is
    trainable.
    """
    model = tape.model
    layers = model._flatten_layers()
    specs = tf.nest.map_structure(values.spec, tape.batch)
    key = (
        tape.training,
        tape.loss,
        str(specs),
        tuple(map(id, tape.variables)),
        tuple((layer.trainable, find_rule(layer)) for layer in layers),
    )
    loss = getattr(model, "_compile_loss", None)
    known = _FOUND.setdefault(model, {})
    kept = known.get(key)
    if kept is None or kept[0]() is not (loss or model):
        compiled = in_xla()
        number = first_tensor(tape.batch[0]).shape[0]
        with tf.init_scope(), random_state_kept(), losses_kept(model):
            found = Trial(tape, specs, number, compiled).exchange()
        known[key] = kept = weakref.ref(loss or model), found
    return kept[1]


def refusals(tape, repeated=None):
    """Return the errors that a tape would raise for what mixes samples.

    Of a model that cannot be tried out nothing is known, and none returned.

    Args:
        tape: the tape.
        repeated: "sample", for which the forward pass is repeated: what that
            may not change is refused, too. "microbatch": layers may take
            the statistics of each, as BatchNormalization does.
    """
    try:
        found = exchange_of(tape)
    except CannotTry:
        return []
    errors = [error for _, error in found.refusals]
    if repeated == "microbatch":
        errors = [
            error
            for layer, error in found.refusals
            if not isinstance(layer, messages.OF_MICROBATCHES)
        ]
    if repeated == "sample" and found.assigned:
        errors.append(ValueError(messages.assigns_weights(found.assigned)))
    if repeated and found.counted:
        errors.append(ValueError(messages.counts(tape.model, repeated)))
    return errors


class CannotTry(ValueError):
    """A model takes none of the batches that can be made up."""


class Trial:
    """One model tried on a few samples of one kind.

    Args:
        tape: the tape of the step; others like it are made.
        specs: the types of the batch, (x, y, sample_weight).
        number: the number of samples in the step, where it is known.
        in_xla: whether XLA compiles the step.
    """

    def __init__(self, tape, specs, number, in_xla):
        self.like, self.specs = tape, specs
        self.number = number if (number or 0) > 1 else None
        self.in_xla = in_xla
        self.fixed = all(
            s is None or None not in s.shape[1:] for s in tf.nest.flatten(specs)
        )

    def exchange(self):
        """Return an `Exchange`."""
        look, before, after, other, *known = self.looked(_Looked)
        judged = _Judgement(look, before, after, other, *known)
        refusals = *_mixes_by_chance(self.like), *judged.refusals(self)
        assigned = _assigned(self.like, look.function)
        return Exchange(judged.seen, refusals, *assigned)

    def looked(self, make):
        """Run a step on a few samples in the way in which the model can.

        Args:
            make: `make(tape, y_pred, loss, behind)` says what to look at.

        Returns:
            What it said, which can run the first batch `again`; the arrays
            for a batch, for the same with one
            sample exchanged and for more samples (None: the model takes one
            number of samples only); and two arguments of `watch`.
        """
        error = None
        for number, compiled in self._ways():
            try:
                traced = self._traced(make, number, compiled)
            except Exception as found:
                # A step of its own number of samples may do.
                if self.number is None:
                    raise
                error = error or found
                continue
            for batches in values.batches(self.specs, number):
                try:
                    runs = [traced.run(batch) for batch in batches]
                except tf.errors.OpError as found:
                    error = error or found
                    continue
                traced.look.function = traced.function
                traced.look.again = functools.partial(traced.run, batches[0])
                other = runs[2] if number is None else None
                known = number or SAMPLES, self.fixed
                return traced.look, runs[0], runs[1], other, *known
        raise CannotTry(
            messages.cannot_be_tried(self.like.model, error)
        ) from error

    def _ways(self):
        """(number of samples or None for any, whether XLA compiles it)."""
        yield None, False
        # Some ops have a kernel in XLA only.
        if self.in_xla:
            yield None, True
        if self.number is not None:
            yield self.number, False

    def _traced(self, make, number, compiled):
        found = _Traced()

        def run(*given):
            parts = iter(given)
            batch = tf.nest.map_structure(
                lambda s: None if s is None else next(parts), self.specs
            )
            tape = self.like.another(batch)
            with tape:
                y_pred = tape.forward(batch[0])
                behind = len(tape.graph.get_operations())
                loss = tape.loss(
                    tape.model, *batch[:2], y_pred, batch[2], tape.training
                )
            found.look = make(tape, y_pred, loss, behind)
            return found.look.tensors

        specs = [s for s in tf.nest.flatten(self.specs) if s is not None]
        if number is not None:
            specs = [values.of_number(s, number) for s in specs]
        found.function = tf.function(
            run, autograph=False, jit_compile=compiled
        ).get_concrete_function(*specs)
        return found


def _assigned(tape, function):
    """The first two of what `Exchange` says of assigned variables."""
    handles = assigned_variables(function)

    def among(variables):
        parts = [p for v in variables for p in components(v)]
        return [h for h in handles if any(h.is_of(part) for part in parts)]

    model = tape.model
    losses = getattr(model, "_compile_loss", None)
    metrics = [*model.metrics, *getattr(losses, "metrics", ())]
    known = [*model.variables, *(v for m in metrics for v in m.variables)]
    known += [v for v in _seeds() if v is not None]
    paths = [v.path for v in tape.variables if among([v])]
    return tuple(paths), len(among(known)) < len(handles)


def _seeds():
    """The state of Keras's own seeds, if something has drawn by them."""
    seeds = global_state.get_global_attribute("global_seed_generator")
    return [seeds and seeds.state]


def _mixes_by_chance(tape):
    """What may mix images, or not, from draw to draw: a run is no proof."""
    layers = tape.model._flatten_layers() if tape.training else []
    return [
        (layer, ValueError(messages.mixes_by_chance(layer)))
        for layer in layers
        if isinstance(layer, messages.MIX_BY_CHANCE)
    ]


class _Traced:
    """A traced step, and what it shows.

    Attributes:
        function: the concrete function.
        look: what its results are, in order.
    """

    look, function = None, None

    def run(self, batch):
        """The tensors for a batch, as arrays."""
        flat = [t for t in tf.nest.flatten(batch) if t is not None]
        return [np.asarray(t) for t in run_and_restore(self.function, *flat)]


class _Looked:
    """The tensors at the candidates of a step.

    Attributes:
        tensors: all of them, flat; the others refer to them by their places.
        behind: the ops of the loss.
    """

    def __init__(self, tape, y_pred, loss, behind):
        self.tensors = []
        self.behind = set(tape.graph.get_operations()[behind:])
        self.uses = uses = tape.uses()
        self.calls = tape.calls
        watched = [t for call in tape.calls for t in call.watched]
        at_ops, at_rules = uses.gradients(loss, watched)
        self.watched = [
            (self._keep(t), self._keep(g)) for t, g in zip(watched, at_rules)
        ]
        self.at = [
            self._candidate(c, deltas)
            for c, deltas in zip(uses.candidates, at_ops)
        ]
        self.outputs = [
            self._keep(t)
            for t in tf.nest.flatten(y_pred)
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
        self.tensors.append(tf.convert_to_tensor(tensor))
        return len(self.tensors) - 1


class _Judgement:
    """What the runs say of what was looked at."""

    def __init__(self, look, before, after, other, number, fixed):
        self.look = look
        self._runs = before, after, other
        self._number, self._fixed = number, fixed
        self.seen = tuple(
            Seen(
                c.op.type,
                {k: self._motion(t) for k, t in data.items()},
                tuple(map(self._motion, outputs)),
                tuple(map(self._motion, deltas)),
            )
            for c, (data, outputs, deltas) in zip(look.uses.candidates, look.at)
        )
        # What rules watch must have the samples on the first axis.
        owners = (c.layer for c in look.calls for _ in c.watched)
        self.misplaced = [
            layer
            for layer, (value, delta) in zip(owners, look.watched)
            if delta is not None and not _leads(self._motion(value))
        ]

    def _motion(self, place):
        if place is None:
            return None
        before, after, other = (
            None if run is None else run[place] for run in self._runs
        )
        return watch(before, after, other, self._number, self._fixed)

    def refusals(self, trial):
        """Yield (layer, error) for what cannot be served."""
        beside, backward = [], False
        forward = any(self._motion(k).mixed for k in self.look.outputs)
        for candidate, seen in zip(self.look.uses.candidates, self.seen):
            if not candidate.by_value and not seen.has_samples:
                continue
            pairs = list(zip(seen.outputs, seen.deltas))
            alive = [(o, d) for o, d in pairs if d is not None]
            if not alive:
                continue
            if candidate.op in self.look.behind and alive[0][0].mixed:
                beside.append(candidate)
                continue
            forward |= any(m.mixed for m in seen.data.values())
            forward |= any(o.mixed for o, _ in alive)
            backward |= any(d.mixed for _, d in alive)
        for value, delta in self.look.watched:
            if delta is not None:
                forward |= self._motion(value).mixed
                backward |= self._motion(delta).mixed
        if forward or backward:
            from keras_pergrad.samples.culprit import culprit

            found, error = culprit(trial, forward)
            yield found, error
            normalization = keras.layers.BatchNormalization
            if isinstance(found, normalization):
                # What follows is mixed, so that a run shows the first only.
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
                candidate, None, (), None, None, self.look.uses, variables
            )
            yield None, ValueError(messages.no_samples(use))


def _leads(motion):
    layout = motion.layout
    return layout is not None and layout.axis == 0 and layout.merged is None
