"""A batch in parts: microbatches, replicas, single samples, sizes of XLA.

The sums of the parts are added up. Each part counts in the loss of the batch
by numerators and denominators (see `microbatch_sums`).
"""

import contextlib
import functools
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common import refusal_messages
from keras_pergrad.keras_internals.data.batches import (
    PaddedBatch,
    first_tensor,
    map_tensors,
    refilled,
    sample_count,
)
from keras_pergrad.keras_internals.graphs import draws
from keras_pergrad.keras_internals.graphs.gradients import same_for_all
from keras_pergrad.keras_internals.losses.compiled import (
    SetApart,
    is_overwritten,
    require_none,
)
from keras_pergrad.keras_internals.losses.fractions import require_parts
from keras_pergrad.keras_internals.losses.losses import (
    additional_sums,
    loss_tensors,
    noting_losses,
    track_loss,
)
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    loss_scale,
    training_inside,
)
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.tensorflow.settings import in_xla
from keras_pergrad.modes.one_step import (
    Step,
    aggregation_now,
    finish,
    observe,
    of_whole,
    overflow_to_infinity,
)
from keras_pergrad.modes.sums import MicrobatchSums, WeightedSums
from keras_pergrad.uses.sample_replay import Recorded, Replay

# The reduction of losses that layers add: sum over the batch, or mean.


LOOKED_AT = 8  # samples at a time; one alone may add a loss of zero


def add_loss_kinds(model, x, training=True):
    """Return for each `add_loss` term its kind, as for `by_kind`."""
    # A zero does not tell, so samples are tried until every term was nonzero.
    # If a term is zero for all, it may have a gradient: then its reducing ops
    # tell. Nothing that the model assigns here is kept.
    # Layers cannot wait for other replicas in a loop.
    together = bool(replicas.waiting(model))
    size = None if together else LOOKED_AT
    look = functools.partial(_look, model, x, training, size)
    seen = look(0)
    if seen is None:
        return []
    if not together:
        n = sample_count(x)
        _, seen = tf.while_loop(
            lambda start, seen: (start < n) & tf.reduce_any(seen[0] == 0),
            lambda start, seen: (
                start + LOOKED_AT,
                tf.where(seen[0] > 0, seen, look(start)),
            ),
            (tf.constant(LOOKED_AT), seen),
            parallel_iterations=1,
        )
    # A replica without such a sample gets the answer from the others.
    return [same_for_all(_agreed(kind)) for kind in tf.unstack(seen[1])]


def _agreed(kind):
    is_sum = tf.cast(replicas.any_of(kind > 0.5), kind.dtype)
    is_neither = replicas.any_of(tf.math.is_nan(kind))
    return tf.where(is_neither, float("nan"), is_sum)


def _look(model, x, training, size, start):
    """Return which terms show their kind, and the kinds, (2, terms)."""
    # At the end of the batch `start` is moved back, so that the number of
    # samples is the same.
    n = sample_count(x)
    # Here, since XLA does not see a constant from outside of a loop.
    size = n if size is None else tf.minimum(n, size)
    rows = tf.minimum(start, n - size) + tf.range(size)
    few = map_tensors(lambda t: tf.gather(t, rows), x)
    drawn, added = [], []
    with (
        keras.StatelessScope(collect_losses=True),
        draws.recording(drawn.append),
        noting_losses(model, added),
    ):
        outputs = loss_tensors(call_model(model, few, training))
    if not added:
        return None
    inside = training_inside(model, training)
    recorded = Recorded(model, (few,), {}, inside, drawn, outputs, added)
    replay = Replay(recorded, list(model.trainable_variables))
    terms = additional_sums(replay, size)
    # A mean over no samples is NaN.
    known = [tf.logical_and(value != 0, n > 0) for value, _ in terms]
    kinds = [kind for _, kind in terms]
    return tf.stack([tf.cast(known, tf.float32), kinds])


# Gradients of embedding tables, with the rows of an id added up.
#
# Keras's optimizers take the rows of a `tf.IndexedSlices` one by one: Adam
# adds up the squares of an id's parts, where its formula has the square of
# their sum.


#: A gradient of at most so many numbers is made dense, which costs no more.
SMALL = 2**18


def for_optimizer(gradients, checks=()):
    """Return gradients with the rows of an id added up, once all are computed.

    No weight changes before every check inside them, and of `checks`, has
    passed.
    """
    gradients = [
        _added(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients
    ]
    return tf.tuple(gradients, control_inputs=checks)


def _added(slices):
    """Return the same gradient; an id's sum stands where it comes last."""
    size = slices.shape.num_elements()
    if size is not None and size <= SMALL:
        return tf.convert_to_tensor(slices)
    # Rows of an id that come before become zero, so that all sizes stay as
    # they are: XLA must know them.
    ids, rows = slices.indices, slices.dense_shape[0]
    count = tf.size(ids)
    places = tf.range(count)
    last = tf.math.unsorted_segment_max(places, ids, rows)
    # Ids of no row, which a GPU and XLA pass over, stay alone.
    known = (ids >= 0) & (ids < tf.cast(rows, ids.dtype))
    places = tf.where(known, tf.gather(last, tf.where(known, ids, 0)), places)
    values = tf.math.unsorted_segment_sum(slices.values, places, count)
    values.set_shape(slices.values.shape)
    return tf.IndexedSlices(values, ids, slices.dense_shape)


# A batch in parts: microbatches, replicas or both, and its single samples.
#
# The sums of the parts are added up. Each part counts in the loss of the
# batch by numerators and denominators (see `microbatch_sums`).


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
    kinds = add_loss_kinds(model, x)
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


# Steps whose parts XLA compiles one by one, padded to a few sizes.
#
# XLA compiles a program for each size of a batch, and the batches of private
# training have many. So the step itself is not compiled, but the passes of
# each part of the batch, with samples of zeros behind its own. These have the
# weight zero in the sums. Metrics, noise and the optimizer are outside and
# see none.


def serves(mode, model):
    """Whether the parts of private steps are to be compiled one by one."""
    # Readers see whole batches, and so do overwritten variables.
    return (
        model.jit_compile
        and not model.run_eagerly
        and not mode.readers
        and model.distribute_strategy.num_replicas_in_sync == 1
        and not any(map(is_overwritten, model.trainable_variables))
    )


def may_begin():
    """Whether what is traced here is not compiled itself."""
    return not tf.executing_eagerly() and not in_xla()


def padded(parting, mode):
    """Return how a batch is taken apart, into padded parts."""
    if parting is None:
        parting = Parting(mode)
        parting.size = None
    sizes = mode.aggregation.batch_sizes()
    parting.sizes = part_sizes(sizes, parting.size)
    return parting


def part_sizes(sizes, most):
    """Return the sizes of the parts of batches of some sizes, ascending.

    All parts have `most` samples but for the last, which has the rest.
    """
    if most is None or most >= sizes[-1]:
        return sizes
    return sorted({most, *(size % most or most for size in sizes[:-1])})
