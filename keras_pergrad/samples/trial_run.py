"""Trials of a model on a few samples: their layout in tensors, and mixing.

The step, copied or traced once aside, is run on three samples, on the same
with each of them exchanged in turn, and on five. The tensors at each use of a
weight, and the gradients there, show by their changes where they hold the
samples (see `motion`). Whatever mixes samples, in the forward or backward
pass, is refused by name. All variables that the runs assign are restored.

Private name in use: `keras.src.backend.common.global_state`.
"""

import weakref

import tensorflow as tf
from keras.src.backend.common import global_state

from keras_pergrad.factors.xla import in_xla
from keras_pergrad.keras_internals import onednn
from keras_pergrad.keras_internals.losses import components
from keras_pergrad.keras_internals.model_state import (
    assigned_variables,
    losses_kept,
    random_state_kept,
    run_and_restore,
)
from keras_pergrad.keras_internals.tracing import (
    graphs_not_optimized,
    traced_functions,
)
from keras_pergrad.samples import messages, trial_batches
from keras_pergrad.samples.exchange import Exchange
from keras_pergrad.samples.layer_rules.rule_registry import find_rule
from keras_pergrad.samples.sample_runs import Runs, Traced
from keras_pergrad.samples.trial_copy import copied
from keras_pergrad.samples.trial_findings import Findings, Observed

#: The name of a seed's state in Keras: every draw advances it.
SEED = "seed_generator_state"
_FOUND = weakref.WeakKeyDictionary()


def exchange_of(tape, own=False, step=None):
    """Return the `Exchange` for a tape's model and batch.

    It is kept as long as the model, its loss, its layers' rules and their
    `trainable` flags stay the same.

    Args:
        tape: the tape of the step.
        own: whether the model must be tried on the step's own number of
            samples, which must be known. Otherwise it is tried on that only
            where the trial's own batches fail.
        step: the `Observed` step, if its ops can be copied for the trial.
    """
    model = tape.model
    layers = model._flatten_layers()
    specs = tf.nest.map_structure(trial_batches.spec, tape.batch)
    key = (
        tape.training,
        tape.loss,
        str(specs),
        own and tape.number,
        tuple(map(id, tape.variables)),
        tuple((layer.trainable, find_rule(layer)) for layer in layers),
    )
    loss = getattr(model, "_compile_loss", None)
    known = _FOUND.setdefault(model, {})
    kept = known.get(key)
    if kept is None or kept[0]() is not (loss or model):
        trial = Trial(tape, specs, tape.number, in_xla(), own, step)
        with (
            tf.init_scope(),
            traced_functions(),
            graphs_not_optimized(),
            random_state_kept(),
            losses_kept(model),
        ):
            found = trial.exchange()
        known[key] = kept = weakref.ref(loss or model), found
    return kept[1]


def exchanges_of(tape, uses, step=None):
    """Return `Exchange`s whose refusals hold; the last is that of the step.

    Where the number of samples is known, TensorFlow may compute a shape while
    it traces (that of `tf.zeros_like`, say), so that the step has other ops
    than a trial on any number. Then the trial is made on the step's own.

    Args:
        tape: the tape of the step.
        uses: its `Uses`.
        step: as for `exchange_of`.
    """
    found = [exchange_of(tape, step=step)]
    if tape.number is not None and not found[0].fits(uses):
        found.append(exchange_of(tape, own=True))
    return found


def refusals(tape, repeated=None, once=False):
    """Return the errors that a tape would raise for mixed samples.

    If the model cannot be tried out, nothing is known and the list is empty.

    Args:
        tape: the tape.
        repeated: "sample" or "microbatch" if the forward pass is repeated for
            each: state that this must not change is refused, too. Layers may
            take statistics of each microbatch, as BatchNormalization does.
        once: whether there is only one of them.
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
    if repeated and found.assigned and not once:
        text = messages.assigns_weights(found.assigned, repeated)
        errors.append(ValueError(text))
    if repeated and found.counted:
        errors.append(ValueError(messages.counts(tape.model, repeated)))
    return errors


def counters(tape):
    """Return the variables that a pass changes whatever its batch is.

    Each microbatch must find them as the whole batch would. If the model
    cannot be tried out, nothing is known and the list is empty.
    """
    try:
        found = exchange_of(tape).counting
    except CannotTry:
        return []
    return [tape.model.non_trainable_variables[k] for k in found]


class CannotTry(ValueError):
    """An error: a model takes none of the batches that can be made up."""


class Trial:
    """One model tried on a few samples of one kind.

    Args:
        tape: the tape of the step; others like it are made.
        specs: the types of the batch, (x, y, sample_weight).
        number: the number of samples in the step, where it is known.
        in_xla: whether XLA compiles the step.
        own: whether the model must be tried on that number.
        step: the `Observed` step, if its ops can be copied; else the trial is
            traced apart.
    """

    def __init__(self, tape, specs, number, in_xla, own=False, step=None):
        self.like, self.specs, self.step = tape, specs, step
        # With one sample there is none to exchange it for.
        self.number = max(number, 2) if number else None
        self.in_xla, self.own = in_xla, own
        self.fixed = all(
            s is None or None not in s.shape[1:] for s in tf.nest.flatten(specs)
        )

    def exchange(self):
        """Return an `Exchange`."""
        observed, runs = self.observe(Observed)
        findings = Findings(observed, runs)
        refusals = *_mixes_by_chance(self.like), *findings.refusals(self)
        assigned = _assigned(self.like, runs.function, observed.uses)
        return Exchange(findings.seen, refusals, *assigned)

    def observe(self, make):
        """Run a step on a few samples, in the first way that works.

        Args:
            make: `make(tape, loss)` returns what to observe.

        Returns:
            What `make` returned, and the `Runs`.
        """
        error = None
        for number, compiled in self._ways():
            try:
                traced = self._traced(make, number, compiled)
            except Exception as found:
                # A trace with the step's own number of samples may work.
                if self.number is None:
                    raise
                error = error or found
                continue
            graph = traced.function.graph
            harm = None if compiled else onednn.defect(graph)
            if harm is not None:
                error = error or ValueError(harm)
                continue
            for batches in trial_batches.batches(
                self.specs, number, self._sizes
            ):
                try:
                    runs = Runs(traced, batches, number, self.fixed)
                except tf.errors.OpError as found:
                    error = error or found
                    continue
                return traced.observed, runs
        raise CannotTry(
            messages.cannot_be_tried(self.like.model, error)
        ) from error

    def _sizes(self, x):
        """Return the shapes of the outputs for inputs x; () if it fails."""
        specs = [
            trial_batches.spec(tf.convert_to_tensor(t))
            for t in trial_batches.unpacked(x)
        ]

        def run(*given):
            taken = trial_batches.packed(x, given)
            tape = self.like.another((taken, None, None))
            with tape:
                outputs = tape.forward(taken)
            return [tf.shape(t) for t in tf.nest.flatten(outputs)]

        try:
            function = tf.function(run, autograph=False)
            found = run_and_restore(
                function.get_concrete_function(*specs),
                *map(tf.convert_to_tensor, trial_batches.unpacked(x)),
            )
        except (ValueError, TypeError, tf.errors.OpError):
            return ()
        return [tuple(shape.numpy()) for shape in found]

    def _ways(self):
        """Yield (number of samples or None, whether XLA compiles it)."""
        first = self.number if self.own else None
        yield first, False
        # Some ops have a kernel only in XLA.
        if self.in_xla:
            yield first, True
        if self.number != first:
            yield self.number, False

    def _traced(self, make, number, compiled):
        if make is Observed and self.step is not None:
            function = copied(self.like, self.step.tensors)
            if function is not None:
                return Traced(function, self.step)
        found = Traced()

        def run(*given):
            batch = trial_batches.packed(self.specs, given)
            tape = self.like.another(batch)
            with tape:
                y_pred = tape.forward(batch[0])
                loss = tape.loss(
                    tape.model, *batch[:2], y_pred, batch[2], tape.training
                )
            found.observed = make(tape, loss)
            return found.observed.tensors

        specs = trial_batches.unpacked(self.specs)
        if number is not None:
            specs = [trial_batches.of_number(s, number) for s in specs]
        found.function = tf.function(
            run, autograph=False, jit_compile=compiled
        ).get_concrete_function(*specs)
        return found


def _assigned(tape, function, uses):
    """Return `assigned`, `counted` and `counting` of an `Exchange`."""
    handles = assigned_variables(function)

    def among(variables):
        parts = [p for v in variables for p in components(v)]
        return [h for h in handles if any(h.is_of(part) for part in parts)]

    model = tape.model
    losses = getattr(model, "_compile_loss", None)
    metrics = [*model.metrics, *getattr(losses, "metrics", ())]
    known = [*model.variables, *(v for m in metrics for v in m.variables)]
    known += [v for v in _seeds() if v is not None]
    paths = tuple(v.path for v in tape.variables if among([v]))
    others = model.non_trainable_variables
    following = uses.places_of(others)
    counting = [
        k
        for k, v in enumerate(others)
        if k not in following and v.name != SEED and among([v])
    ]
    return paths, len(among(known)) < len(handles), tuple(counting)


def _seeds():
    """Return the state of Keras's global seed, if a draw has used it."""
    seeds = global_state.get_global_attribute("global_seed_generator")
    return [seeds and seeds.state]


def _mixes_by_chance(tape):
    """List the layers that mix images for some draws: a run proves nothing."""
    layers = tape.model._flatten_layers() if tape.training else []
    return [
        (layer, ValueError(messages.mixes_by_chance(layer)))
        for layer in layers
        if isinstance(layer, messages.MIX_BY_CHANCE)
    ]
