"""A batch in parts: microbatches, replicas or both, and its single samples.

The sums of the parts are added up. Each part counts in the loss of the batch
by numerators and denominators (see `microbatch_sums`).
"""

import contextlib
from typing import Any

import tensorflow as tf

from keras_pergrad.common import refusal_messages
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import (
    PaddedBatch,
    first_tensor,
    map_tensors,
    refilled,
    sample_count,
)
from keras_pergrad.keras_internals.loss_fractions import require_parts
from keras_pergrad.keras_internals.losses import track_loss
from keras_pergrad.keras_internals.optimizers import loss_scale
from keras_pergrad.keras_internals.overwritten import SetApart, require_none
from keras_pergrad.modes import add_loss_reduction
from keras_pergrad.modes.equal_rows import for_optimizer
from keras_pergrad.modes.microbatch_sums import MicrobatchSums
from keras_pergrad.modes.one_step import (
    Step,
    aggregation_now,
    finish,
    observe,
    of_whole,
    overflow_to_infinity,
)
from keras_pergrad.modes.weighted_sums import WeightedSums

#: More samples than any batch has, so a batch is one microbatch.
MOST = 2**24


class Parting:
    """How a batch is taken apart: here, by the replicas alone.

    Attributes:
        mode: whose `partial_sums` are taken.
        size: the number of samples in a microbatch; None: the batch is one.
        steps: how many batches make an update.
        own_sums: whether the mode's sums are asked for, not the plain ones.
        sizes: those to which parts are padded for XLA, each compiled alone;
            None: nothing is compiled here.
    """

    steps = 1
    own_sums = True
    sizes = None

    def __init__(self, mode, size=None):
        self.mode = mode
        counts = mode.aggregation is not None and mode.aggregation.counts
        # The model must not be called for no sample, which a replica or a
        # batch that is drawn at random may have.
        self.size = MOST if size is None and counts else size

    def require(self, model, batch):
        """Refuse a model or a batch that cannot be trained in parts."""
        del batch
        require_parts(model)
        require_none(model, "several replicas")

    @contextlib.contextmanager
    def checked(self, model, batch, sums):
        """Open a context; yield `sums`, or a function around it."""
        del model, batch
        yield sums


def of_parts(parting, model, batch):
    """Return the step of a batch in parts: microbatches, replicas or both."""
    parting.require(model, batch)
    mode, size, alone = parting.mode, parting.size, parting.steps == 1
    aggregation = aggregation_now(mode, model)
    scale = loss_scale(model.optimizer)
    x = batch[0] if parting.sizes is None else PaddedBatch(batch[0]).batch
    kinds = add_loss_reduction.kinds(model, x)
    given = model, batch[0], scale, kinds, alone
    parts: Any
    if parting.own_sums:
        parts = mode.sums_of_parts(aggregation, *given)
        if parting.sizes is not None:
            # The mean of an `add_loss` term is also over added samples.
            parts.sizes = () if kinds else parting.sizes
    else:
        parts = MicrobatchSums(*given)
    with parting.checked(model, batch, parts) as function:
        if isinstance(parts, WeightedSums):
            parts.know_denominators(sum_over(parts.denominators, batch, size))
            batch = *batch, tf.range(parts.count)
        sums: Any = sum_over(function, batch, size)
    totals = parts.totals(sums)
    groups, norms = parts.groups(totals), totals.get("norms")
    plain = totals.get("plain") or totals["gradients"].get("batch")
    logged = observe(mode, model, aggregation, norms, parts.rows, plain)
    gradients = None
    if alone:
        summed = groups, parts.mask_epsilons
        mean, more = mode.gradients_of_sums(model, *summed, aggregation)
        logged = {**logged, **more}
        gradients = finish(model, aggregation, mean, parts.rows, scale, norms)
    else:
        _wait(parting, model, parts, groups, norms, scale)
        # An update has logged them itself.
        nothing = tf.constant(float("nan"))
        logged.update(dict.fromkeys(mode.logged_by_updates(model), nothing))
    return Step(parts.loss(totals), None, gradients, logged, whole=True)


def _wait(parting, model, parts, groups, norms, scale):
    """Add a batch to those that wait; update where enough of them do."""
    if norms is not None and scale is not None:
        groups = {
            key: (overflow_to_infinity(gradients, norms, scale), below)
            for key, (gradients, below) in groups.items()
        }
    waiting = model.gradient_state
    waiting.add(groups, parts.mask_epsilons, parts.variables)
    due = waiting.count >= parting.steps
    replicas.when(due, lambda: update(parting.mode, model))


def update(mode, model):
    """Call the optimizer with all batches that wait for an update."""
    waiting, variables = model.gradient_state, model.trainable_variables
    aggregation = aggregation_now(mode, model)
    scale = loss_scale(model.optimizer)
    summed = waiting.groups(variables), waiting.mask_epsilons
    mean, logged = mode.gradients_of_sums(model, *summed, aggregation)
    model.gradient_logs.update(logged)
    gradients = finish(model, aggregation, mean, waiting.rows, scale)
    replicas.apply(model.optimizer, gradients, variables)
    waiting.reset()


def update_by_sample(mode, model, batch):
    """Return the step of a batch each of whose samples makes an update."""
    if replicas.several():
        count = tf.distribute.get_strategy().num_replicas_in_sync
        raise ValueError(refusal_messages.one_after_the_other(count))
    n = sample_count(batch)
    with SetApart(model):
        groups = mode.aggregation.groups(model.trainable_variables)
    shape = [] if groups is None else [max(groups) + 1]
    norms = tf.TensorArray(tf.float32, n, element_shape=shape)

    def body(i, norms):
        row = map_tensors(lambda t: t[i : i + 1], batch)
        step, norm = of_whole(mode, model, row, is_single=True)
        track_loss(model, step.loss, 1)
        gradients = for_optimizer(step.gradients)
        model.optimizer.apply(gradients, model.trainable_variables)
        x, y, sample_weight = row
        model.compute_metrics(x, y, step.y_pred, sample_weight)
        return i + 1, norms.write(i, tf.cast(norm[0], tf.float32))

    _, norms = tf.while_loop(
        lambda i, _: i < n,
        body,
        (tf.constant(0), norms),
        parallel_iterations=1,
    )
    aggregation = aggregation_now(mode, model)
    return Step(None, None, None, aggregation.statistics(norms.stack()))


def is_one(batch, size):
    """Return whether a batch is surely a single microbatch."""
    rows = first_tensor(batch).shape[0]
    return rows is not None and rows <= size


def sum_over(function, batch, size):
    """Return the sum over microbatches of `size` samples, the last smaller."""
    # In a graph the function is traced once for all full ones, and once for the
    # last. Its results have fixed shapes but for axes as long as the batch.
    # Size None: all at once, also where the batch has no sample.
    if size is None or is_one(batch, size):
        return function(*batch)
    flat = _Flat(function, batch)
    rows = flat.tensors[0].shape[0]
    count = tf.shape(flat.tensors[0])[0] if rows is None else rows
    full, rest = count // size, count % size
    if tf.executing_eagerly():
        totals = flat.of_rows(0, size)
        for start in range(size, count, size):
            totals = flat.added_to(totals, start, start + size)
        return refilled(flat.result, totals)
    totals = _sum_full(flat, full, size, count)
    # At least one sample, so no branch is compiled for zero samples.
    first = count - tf.maximum(rest, 1) if rows is None else -rest
    if rows is None:
        totals = tf.cond(
            rest > 0, lambda: flat.added_to(totals, first), lambda: totals
        )
    elif rest:
        totals = flat.added_to(totals, first)
    return refilled(flat.result, totals)


def _sum_full(flat, full, size, count):
    """Return the sum over the microbatches of full size, in a loop."""
    specs = [tf.TensorSpec([size, *t.shape[1:]], t.dtype) for t in flat.tensors]
    # Traced before the loop, which must know the shapes of the results.
    traced = tf.function(flat, autograph=False).get_concrete_function(*specs)

    def body(i, totals):
        # A gather has a fixed size, and may be traced for a batch that is
        # smaller (where it is never run).
        index = i * size + tf.range(size)
        sums = traced(*(tf.gather(t, index) for t in flat.tensors))
        return i + 1, [a + b for a, b in zip(totals, sums)]

    zeros = [
        tf.zeros([count if d is None else d for d in t.shape], t.dtype)
        for t in traced.structured_outputs
    ]
    _, totals = tf.while_loop(
        lambda i, _: i < full,
        body,
        (tf.constant(0), zeros),
        parallel_iterations=1,
    )
    return totals


class _Flat:
    """A function of a batch as a function of flat lists without None."""

    def __init__(self, function, batch):
        self.function = function
        self.batch = batch
        self.tensors = [t for t in tf.nest.flatten(batch) if t is not None]
        self.result = None

    def __call__(self, *tensors):
        self.result = self.function(*refilled(self.batch, tensors))
        # Outside of the trace `tf.IndexedSlices` would not know their shape.
        return [
            tf.convert_to_tensor(t)
            for t in tf.nest.flatten(self.result)
            if t is not None
        ]

    def of_rows(self, first, end=None):
        return self(*(t[first:end] for t in self.tensors))

    def added_to(self, totals, first, end=None):
        return [
            a + b for a, b in zip(totals, self.of_rows(first, end), strict=True)
        ]
