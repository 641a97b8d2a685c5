"""A batch in parts: microbatches, replicas, single samples, sizes of XLA.

The sums of the parts are added up. Each part counts in the loss of the batch
by numerators and denominators (see `sums.py`).
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_pergrad.common import refusal_messages
from keras_pergrad.common.batches import (
    first_tensor,
    map_tensors,
    pack_like,
    sample_count,
    tensors_of,
)
from keras_pergrad.keras_internals.losses.losses import track_loss
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.modes import fractions
from keras_pergrad.modes.fractions import numerators, require_additive_loss
from keras_pergrad.modes.one_step import (
    Step,
    StepBatch,
    current_aggregation,
    for_optimizer,
    loss_scale,
    overflow_to_infinity,
    step_of_whole_batch,
)
from keras_pergrad.modes.part_metrics import update_metrics
from keras_pergrad.modes.sums import MicrobatchSums, WeightedSums
from keras_pergrad.uses import TracedStep, added_powers

#: More samples than any batch has, so a batch is one microbatch.
MAX_BATCH = 2**24


class Parting:
    """How a batch is split: here, by the replicas alone.

    Attributes:
        mode: whose `partial_sums` are taken.
        size: the number of samples in a microbatch; None: the batch is one.
        steps: how many batches make an update.
        has_own_sums: whether the mode gives the sums, not `MicrobatchSums`.
        sizes: the sizes to which parts are padded for XLA; each is compiled
            by itself. None: nothing is compiled here.
    """

    steps: int = 1
    has_own_sums: bool = True
    sizes: Any = None

    def __init__(self, mode: Any, size: int | None = None):
        self.mode: Any = mode
        counts = mode.aggregation is not None and mode.aggregation.counts
        # The model must not be called for no sample, which a replica or a
        # batch that is drawn at random may have.
        self.size: int | None = MAX_BATCH if size is None and counts else size

    def require(self, model: Any, batch: Any) -> None:
        """Refuse a model or a batch that cannot be trained in parts."""
        del batch
        require_additive_loss(model)

    @contextlib.contextmanager
    def checked(
        self, model: Any, batch: Any, sums: Callable[..., Any]
    ) -> Iterator[Callable[..., Any]]:
        """Open a context; yield `sums`, or a function around it."""
        del model, batch
        yield sums


def step_of_parts(parting, model, batch, *, options):
    """Return the step of a batch in parts: microbatches, replicas or both."""
    parting.require(model, batch)
    mode, size, is_single_batch = parting.mode, parting.size, parting.steps == 1
    aggregation = current_aggregation(mode, model)
    scale = loss_scale(model.optimizer)
    find_kinds = find_added_kinds(model, batch)
    make_sums: Any = MicrobatchSums
    if parting.has_own_sums:
        make_sums = functools.partial(mode.sums_of_parts, aggregation, options)
    batch_sums = make_sums(
        model=model,
        x=batch[0],
        scale=scale,
        find_added_kinds=find_kinds,
        is_single_batch=is_single_batch,
    )
    if parting.has_own_sums and parting.sizes is not None:
        # Of a padded part, the mean of an `add_loss` term would be over the
        # padding, too.
        batch_sums.sizes = () if find_kinds() else parting.sizes
    metrics = batch_sums.metrics
    metrics.is_single = size is None or is_single_microbatch(batch, size)
    with parting.checked(model, batch, batch_sums) as function:
        if isinstance(batch_sums, WeightedSums):
            # A first pass: norms need denominators of the whole batch.
            batch_sums.set_denominators(
                sum_microbatches(batch_sums.denominators, batch, size)
            )
        if isinstance(batch_sums, WeightedSums) or metrics.joins_outputs:
            batch = *batch, tf.range(batch_sums.count)
        sums: Any = sum_microbatches(function, batch, size)
    totals = batch_sums.totals(sums)
    groups, norms = batch_sums.groups(totals), totals.get("norms")
    plain = totals.get("plain") or totals["gradients"].get("batch")
    step_batch = StepBatch(
        model=model,
        aggregation=aggregation,
        n=batch_sums.rows,
        scale=scale,
        norms=norms,
    )
    logged = step_batch.observe(
        plain if mode.gives_statistics(options) else None
    )
    gradients = None
    if is_single_batch:
        mean_gradients, more_logs = mode.gradients_of_sums(
            model=model,
            groups=groups,
            mask_epsilons=batch_sums.mask_epsilons,
            aggregation=aggregation,
        )
        logged = {**logged, **more_logs}
        gradients = step_batch.finish(mean_gradients)
    else:
        _accumulate(
            parting, model, batch_sums, groups=groups, norms=norms, scale=scale
        )
        # An update has logged them itself; NaN is left out of their means.
        undefined = tf.constant(float("nan"))
        logged.update(dict.fromkeys(mode.logged_by_updates(model), undefined))
    outputs = metrics.joined(totals.get("outputs"))
    return Step(
        batch_sums.loss(totals),
        outputs,
        gradients,
        statistics=logged,
        whole=True,
    )


def find_added_kinds(model, batch, training=True):
    """Return a function that tells of each `add_loss` term what it is."""
    traced = TracedStep(model, batch, training)
    # A trace aside cannot wait for other replicas.
    has_waiting_layers = bool(replicas.synchronizing_layers(model))

    def find():
        waits = replicas.alone() if has_waiting_layers else None
        with waits or contextlib.nullcontext():
            powers = added_powers(traced, values=numerators)
        return [(fractions.SUM, fractions.ROWS)[k] for k in powers]

    return find


def _accumulate(parting, model, batch_sums, *, groups, norms, scale):
    """Add a batch to those that wait; update where enough of them do."""
    if norms is not None and scale is not None:
        groups = {
            key: (overflow_to_infinity(gradients, norms, scale), denominator)
            for key, (gradients, denominator) in groups.items()
        }
    accumulator = model.gradient_state
    accumulator.add(groups, batch_sums.mask_epsilons, batch_sums.variables)
    is_due = accumulator.count >= parting.steps
    replicas.run_if(is_due, lambda: update(parting.mode, model))


def update(mode, model):
    """Call the optimizer with all batches that wait for an update."""
    accumulator, variables = model.gradient_state, model.trainable_variables
    aggregation = current_aggregation(mode, model)
    mean_gradients, logged = mode.gradients_of_sums(
        model=model,
        groups=accumulator.groups(variables),
        mask_epsilons=accumulator.mask_epsilons,
        aggregation=aggregation,
    )
    model.gradient_logs.update(logged)
    step_batch = StepBatch(
        model=model,
        aggregation=aggregation,
        n=accumulator.rows,
        scale=loss_scale(model.optimizer),
    )
    gradients = step_batch.finish(mean_gradients)
    replicas.apply(model.optimizer, gradients, variables)
    accumulator.reset()


def update_by_sample(mode, model, batch):
    """Return the step of a batch each of whose samples makes an update."""
    if replicas.has_several_replicas():
        count = tf.distribute.get_strategy().num_replicas_in_sync
        raise ValueError(refusal_messages.sequential_updates(count))
    n = sample_count(batch)
    groups = mode.aggregation.groups(model.trainable_variables)
    shape = [] if groups is None else [max(groups) + 1]
    norms = tf.TensorArray(tf.float32, n, element_shape=shape)

    def body(i, norms):
        row = map_tensors(lambda t: t[i : i + 1], batch)
        step, norm = step_of_whole_batch(mode, model, row, is_single=True)
        track_loss(model, step.loss, 1)
        gradients = for_optimizer(step.gradients)
        model.optimizer.apply(gradients, model.trainable_variables)
        x, y, sample_weight = row
        update_metrics(model, (x, y, step.y_pred, sample_weight))
        return i + 1, norms.write(i, tf.cast(norm[0], tf.float32))

    _, norms = tf.while_loop(
        lambda i, _: i < n,
        body,
        (tf.constant(0), norms),
        parallel_iterations=1,
    )
    aggregation = current_aggregation(mode, model)
    return Step(
        None, None, None, statistics=aggregation.statistics(norms.stack())
    )


def is_single_microbatch(batch, size):
    """Return whether a batch is surely a single microbatch."""
    rows = first_tensor(batch).shape[0]
    return rows is not None and rows <= size


def sum_microbatches(function, batch, size):
    """Return the sum over microbatches of `size` samples, the last smaller."""
    # In a graph the function is traced once for all full ones, and once for the
    # last. Its results have fixed shapes but for axes as long as the batch.
    # Size None: all at once, also where the batch has no sample.
    if size is None or is_single_microbatch(batch, size):
        return function(*batch)
    flat = _FlatFunction(function, batch)
    rows = flat.tensors[0].shape[0]
    row_count = tf.shape(flat.tensors[0])[0] if rows is None else rows
    full_count, remainder = row_count // size, row_count % size
    if tf.executing_eagerly():
        totals = flat.call_on_rows(0, size)
        for start in range(size, row_count, size):
            totals = flat.add_rows(totals, start, start + size)
        return pack_like(flat.result, totals)
    totals = _sum_full(flat, full_count, size, row_count=row_count)
    # At least one sample, so no branch is compiled for zero samples.
    start_of_rest = (
        row_count - tf.maximum(remainder, 1) if rows is None else -remainder
    )
    if rows is None:
        totals = tf.cond(
            remainder > 0,
            lambda: flat.add_rows(totals, start_of_rest),
            lambda: totals,
        )
    elif remainder:
        totals = flat.add_rows(totals, start_of_rest)
    return pack_like(flat.result, totals)


def _sum_full(flat, full_count, size, *, row_count):
    """Return the sum over the microbatches of full size, in a loop."""
    specs = [tf.TensorSpec([size, *t.shape[1:]], t.dtype) for t in flat.tensors]
    # Traced before the loop, which must know the shapes of the results.
    traced = tf.function(flat, autograph=False).get_concrete_function(*specs)

    def body(i, totals):
        # A gather has a fixed size, and may be traced for a batch that is
        # smaller (where it is never run).
        indices = i * size + tf.range(size)
        sums = traced(*(tf.gather(t, indices) for t in flat.tensors))
        return i + 1, [a + b for a, b in zip(totals, sums)]

    zeros = [
        tf.zeros([row_count if d is None else d for d in t.shape], t.dtype)
        for t in traced.structured_outputs
    ]
    _, totals = tf.while_loop(
        lambda i, _: i < full_count,
        body,
        (tf.constant(0), zeros),
        parallel_iterations=1,
    )
    return totals


class _FlatFunction:
    """A function of a batch as a function of flat lists without None."""

    def __init__(self, function, batch):
        self.function = function
        self.batch = batch
        self.tensors = tensors_of(batch)
        self.result = None

    def __call__(self, *tensors):
        self.result = self.function(*pack_like(self.batch, tensors))
        # Outside of the trace `tf.IndexedSlices` would not know their shape.
        return [tf.convert_to_tensor(t) for t in tensors_of(self.result)]

    def call_on_rows(self, start, end=None):
        return self(*(t[start:end] for t in self.tensors))

    def add_rows(self, totals, start, end=None):
        return [
            a + b
            for a, b in zip(totals, self.call_on_rows(start, end), strict=True)
        ]


def pad_parts(parting, mode):
    """Return how a batch is split into parts that XLA compiles one by one.

    It compiles a program for each size of a batch, and the batches of private
    training have many. So each part gets samples of zeros behind its own, of
    weight zero in the sums. Metrics, noise and the optimizer see none.
    """
    if parting is None:
        parting = Parting(mode)
        parting.size = None
    batch_sizes = mode.aggregation.batch_sizes()
    parting.sizes = part_sizes(batch_sizes, parting.size)
    return parting


def part_sizes(sizes, max_size):
    """Return the sizes of the parts of batches of some sizes, ascending.

    All parts have `max_size` samples but for the last, which has the rest.
    """
    if max_size is None or max_size >= sizes[-1]:
        return sizes
    return sorted(
        {max_size, *(size % max_size or max_size for size in sizes[:-1])}
    )
