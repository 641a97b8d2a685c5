"""The batch in microbatches: the gradient of the whole, in less memory."""

import tensorflow as tf

from keras_pergrad.aggregation import is_finite
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.refusal_messages import not_dense
from keras_pergrad.common.registry import arguments_shown, serialize
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import first_tensor, is_composite
from keras_pergrad.keras_internals.optimizers import accumulating
from keras_pergrad.keras_internals.overwritten import (
    is_overwritten,
    require_none,
)
from keras_pergrad.keras_internals.penalties import regularization_gradients
from keras_pergrad.modes import add_loss_reduction, replica_step
from keras_pergrad.modes.base import (
    GradientMode,
    Step,
    finished,
    loss_scale,
    modes,
    observed,
    overflow_to_infinity,
    scaled,
    with_penalties,
)
from keras_pergrad.modes.batch import Batch
from keras_pergrad.modes.gradient_accumulator import Pending
from keras_pergrad.modes.loss_fractions import numerators
from keras_pergrad.modes.microbatch_sums import Contributions, divided
from keras_pergrad.modes.microbatches import MOST, is_one, sum_over
from keras_pergrad.modes.virtual_batch import WeightedContributions
from keras_pergrad.samples import Tape, counters, refusals

TAILS = ("apply", "keep", "drop")


class Accumulated(GradientMode):
    """The gradient of a big batch, from microbatches: exact, in less memory.

    Every microbatch gives the numerators and denominators of the losses and
    the gradients of the numerators. They are summed, then divided once. The
    result is the gradient of the whole for every Keras reduction, with sample
    weights, masks and several outputs, however the whole is split. The
    optimizer is called once per update: its `iterations`, schedules, moving
    averages, weight decay, constraints, clipping and loss scale count updates.

    Metrics are updated microbatch by microbatch. Random layers draw new
    numbers for each, and BatchNormalization uses the statistics of each.

    Args:
        steps: after how many batches the optimizer is called; with `steps=3`,
            batches of 4, 4 and 2 train like one batch of 10.
        microbatch_size: how many samples of a batch go through the model at a
            time; it sets the memory of a step. None: the batch stays whole,
            so BatchNormalization sees all of it; with `steps=1` this is what
            `inner` does by itself, in the same memory.
        inner: how a microbatch's gradient is found: "batch", or a mode with
            an aggregation, "vectorized" or "per_sample" (name, object or
            config dict). With `ClippedMean` the whole is a virtual batch:
            clipped per sample, summed, noise added once per update.
        tail: what happens to batches that wait for an update when an epoch of
            `fit` ends: "apply" updates with these alone, "keep" goes on in the
            next epoch or `fit`, "drop" discards them. Where a `fit` was
            interrupted, or `train_on_batch` was called before, batches wait
            when the next `fit` begins: only "keep" uses them, else they are
            discarded.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Accumulated(steps=4, microbatch_size=64)
    """

    def __init__(
        self, steps=1, microbatch_size=None, inner="batch", tail="apply"
    ):
        self.steps = positive_integer("steps", steps)
        if microbatch_size is not None:
            microbatch_size = positive_integer(
                "microbatch_size", microbatch_size
            )
        self.microbatch_size = microbatch_size
        self.inner = _inner(inner)
        self.per_sample = self.inner.per_sample
        if tail not in TAILS:
            raise ValueError(
                f"`tail` must be one of {TAILS}. Received: tail={tail!r}"
            )
        self.tail = tail

    @property
    def aggregation(self):
        """The aggregation of the inner mode."""
        return self.inner.aggregation

    @property
    def updates_by_itself(self):
        return self.steps > 1

    @property
    def _weighs(self):
        """Whether samples are weighted one by one."""
        return self.aggregation is not None and self.aggregation.needs_norms

    def make_state(self):
        return Pending() if self.steps > 1 else None

    def step(self, model, x, y, sample_weight):
        overwritten = any(map(is_overwritten, model.trainable_variables))
        if overwritten and self._stays_whole and not replicas.several():
            # Their new value is not a sum over parts of the loss.
            return self.inner.step(model, x, y, sample_weight)
        _require_plain(model)
        require_none(model, f"gradient_mode={self!r}")
        for part in tf.nest.flatten((x, y, sample_weight)):
            if is_composite(part):
                raise ValueError(not_dense(part))
        batch, size = (x, y, sample_weight), self._size()
        scale = loss_scale(model.optimizer)
        sums = add_loss_reduction.kinds(model, x)
        arguments = model, x, scale, sums, self.steps == 1
        tried = Tape(model, batch)
        if self._weighs:
            parts = WeightedContributions(self.inner, *arguments)
            parts.look_through(batch, size)
            batch = *batch, tf.range(tf.shape(first_tensor(x))[0])
        else:
            parts = Contributions(*arguments)
            for error in refusals(tried) if self.per_sample else ():
                raise error
        once = self.microbatch_size is None or is_one(batch, size)
        read = [(v, tf.identity(v.value)) for v in counters(tried, numerators)]

        def part(*batch):
            # Each part reads the values that the whole batch would read.
            for variable, value in read:
                variable.assign(value)
            return parts(*batch)

        found = sum_over(part, batch, size)
        alone = once and self.steps == 1
        for error in refusals(tried, "microbatch", once, numerators, alone):
            raise error
        totals = parts.totals(found)
        groups, statistics = self._checked(
            model, parts.groups(totals), totals, scale
        )
        if self.steps == 1:
            gradients = divided(groups, parts.slack)
            gradients = self._finish(model, gradients, parts.rows)
        else:
            pending = model.gradient_state
            pending.add(groups, parts.slack, parts.variables)
            due = pending.count >= self.steps
            replicas.when(due, lambda: self._update(model))
            gradients = None
        loss = parts.loss(totals)
        return Step(loss, None, gradients, statistics, whole=True)

    @property
    def _stays_whole(self):
        return self.steps == 1 and self.microbatch_size is None

    def _size(self):
        """Return the size of a microbatch; None: the batch is one."""
        # The model must not be called for no sample, which a replica or a
        # batch that is drawn at random may have.
        counts = self.aggregation is not None and self.aggregation.counts
        if self.microbatch_size is None and (counts or replicas.several()):
            return MOST
        return self.microbatch_size

    def _checked(self, model, groups, totals, scale):
        """Return groups, infinite on overflow, and the batch's statistics."""
        if not self._weighs:
            return groups, {}
        norms = totals["norms"]
        if scale is not None:
            finite = is_finite(norms)
            groups = {
                key: (overflow_to_infinity(gradients, finite, scale), below)
                for key, (gradients, below) in groups.items()
            }
        state = model.aggregation_state
        return groups, observed(self.aggregation.at(state), norms, state)

    def _finish(self, model, gradients, rows):
        """Return the gradients as the optimizer expects them."""
        if self.aggregation is not None:
            state = model.aggregation_state
            aggregation = self.aggregation.at(state)
            gradients = finished(aggregation, gradients, rows, state)
        penalties = regularization_gradients(model.trainable_variables)
        gradients = with_penalties(gradients, penalties)
        return scaled(gradients, loss_scale(model.optimizer))

    def _update(self, model):
        """Call the optimizer with all that is pending."""
        pending, variables = model.gradient_state, model.trainable_variables
        gradients = pending.gradients(variables)
        gradients = self._finish(model, gradients, pending.rows)
        replicas.apply(model.optimizer, gradients, variables)
        pending.reset()

    def begin_fit(self, model):
        if self.steps > 1 and self.tail != "keep":
            model.gradient_state.forget()

    def end_epoch(self, model):
        if self.steps == 1 or self.tail == "keep":
            return
        if self.tail == "drop":
            model.gradient_state.reset()
        elif model.gradient_state.waiting:
            # Where an update can be made, also under a strategy.
            model.distribute_strategy.run(self._update, args=(model,))

    @property
    def log_metrics(self):
        return self.inner.log_metrics

    def __repr__(self):
        # What is split is shown even where it is the default.
        always = ("steps", "microbatch_size")
        shown = {name: getattr(self, name) for name in self.get_config()}
        return arguments_shown(self, shown, always)

    def get_config(self):
        return {
            "steps": self.steps,
            "microbatch_size": self.microbatch_size,
            "inner": serialize(self.inner),
            "tail": self.tail,
        }


def _inner(identifier):
    mode = modes.get(identifier)
    if getattr(mode, "updates", "batch") != "batch":
        raise ValueError(
            "`inner` cannot update after every sample, since its gradients "
            f"are to be summed. Received: updates={mode.updates!r}"
        )
    if getattr(mode, "with_statistics", False):
        raise ValueError(
            "`inner` cannot log statistics, which are of one batch and not of "
            "its microbatches. Received: statistics=True"
        )
    if type(mode) is Batch:
        return mode
    if hasattr(mode, "weighted_sum"):
        step, part = (_definer(mode, n) for n in ("step", "weighted_sum"))
        if issubclass(step, part) and step is not part:
            raise ValueError(
                "`inner` finds the gradient of each microbatch by its "
                f"weighted_sum(), which {step.__name__} has from "
                f"{part.__name__}, so that {step.__name__}.step() would not "
                f"count. Define both in {step.__name__}. "
                f"Received: inner={mode!r}"
            )
        return mode
    known = [
        name
        for name, cls in modes.items()
        if cls is Batch or hasattr(cls, "weighted_sum")
    ]
    raise ValueError(
        f"`inner` must be one of {known}, or a mode with a method "
        f"weighted_sum(). Received: {type(mode).__name__}"
    )


def _definer(mode, name):
    """Return the class that defines a method of a mode."""
    return next(cls for cls in type(mode).__mro__ if name in vars(cls))


def _require_plain(model):
    replica_step.require_parts(model)
    optimizer = accumulating(model.optimizer)
    if optimizer is not None:
        raise ValueError(
            f"The optimizer {optimizer.name!r} accumulates gradients on its "
            "own (gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}). Leave that to "
            "gradient_mode=Accumulated(steps=...)."
        )
    for layer in replicas.waiting(model):
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) takes statistics "
            "over all replicas (synchronized=True), which cannot be done for "
            "one microbatch after the other. Use synchronized=False, or "
            "GroupNormalization instead, or gradient_mode='batch'."
        )


modes.register("accumulated", Accumulated)
