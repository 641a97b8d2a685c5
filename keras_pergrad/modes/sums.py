"""The sums of microbatches, for the gradient and the loss of their batch.

Every term of the loss is N / D (see `fractions`). Terms with the same D
share a backward pass and a sum; each sum is divided by its D once, at the end:

    "batch"   D is known beforehand: if each batch makes its own update, all
              terms that are sums or in proportion to the number of samples
    "sum"     D = 1
    "rows"    D = the number of samples
    "loss3"   D is that of the fourth loss alone, known from the data

What is summed for each task begins with its number, as "task0_rows".
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common import refusal_messages as messages
from keras_pergrad.common.batches import first_tensor, map_tensors, sample_count
from keras_pergrad.common.gradients import with_shapes
from keras_pergrad.keras_internals.data import views
from keras_pergrad.keras_internals.losses.losses import recording_losses
from keras_pergrad.keras_internals.losses.regularizers import (
    regularization_loss,
)
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    mask_of,
    set_mask,
)
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.tensorflow.settings import traced_once
from keras_pergrad.modes import fractions
from keras_pergrad.modes.one_step import plus, times
from keras_pergrad.modes.padded_batch import PaddedBatch
from keras_pergrad.modes.part_metrics import PartMetrics, placed
from keras_pergrad.modes.step_options import StepOptions


class MicrobatchSums:
    """A function of a microbatch whose results add up over the batch."""

    # `x` are the inputs of the batch, or of a replica's share in it.
    # `find_added_kinds()` tells of each `add_loss` term whether it is a sum
    # over the samples, or a mean; it is asked where there are such terms.
    # `is_single_batch`: no other batch adds samples to the update.

    def __init__(
        self, model, x, scale, *, find_added_kinds, is_single_batch=True
    ):
        self.model, self.scale = model, scale
        self.variables = list(model.trainable_variables)
        self.is_single_batch = is_single_batch
        self._find_added_kinds = find_added_kinds
        self.static_rows = first_tensor(x).shape[0]
        self.dtype = keras.config.floatx()
        self.count = sample_count(x)
        self.several = replicas.has_several_replicas()
        self.replica_rows = tf.cast(self.count, self.dtype)
        self.rows = replicas.sum_over_replicas(self.replica_rows)
        self.metrics = PartMetrics(model, self.count)
        #: Of the first microbatch: their kinds hold for all.
        self.terms = []

    def __call__(self, x, y, sample_weight, index=None):
        """Run both passes of a microbatch; return what adds up, by name."""
        rows = tf.cast(sample_count(x), self.dtype)
        # Persistent: each group of terms has a backward pass of its own.
        with tf.GradientTape(persistent=True) as tape:
            y_pred, added = self.call(x)
            terms = self.evaluate(x, y, y_pred, sample_weight)
            targets = self.targets(terms, added, rows)
            scaled = {k: times(t, self.scale) for k, t in targets.items()}
        gradients = {}
        target: Any
        for key, target in scaled.items():
            group_gradients = tape.gradient(target, self.variables)
            group_gradients = unscaled(group_gradients, self.scale)
            # Undoes the division in `target`.
            row_factor = rows if divisor_of(key) in self.mask_epsilons else None
            gradients[key] = with_shapes(
                [times(g, row_factor) for g in group_gradients], self.variables
            )
        del tape
        return {
            "gradients": gradients,
            **self.metrics.of_part(
                x, y, y_pred, sample_weight=sample_weight, index=index
            ),
            **self.loss_values(terms, added, rows),
        }

    def call(self, x):
        """Return the model's outputs, and the terms given to `add_loss`."""
        added = []
        with recording_losses(self.model, added):
            return views.call_views(self.model, x), added

    def evaluate(self, x, y, y_pred, sample_weight):
        """Return the compiled losses of a microbatch, as fractions."""
        losses = compiled_loss(self.model)
        terms = fractions.evaluate(losses, y, y_pred, sample_weight)
        if not self.is_single_batch:
            terms = [self._generalize_term(t) for t in terms]
        self.terms = self.terms or terms
        return terms

    def _generalize_term(self, term):
        """Allow later batches to have longer samples, or weights."""
        is_sure = term.rank == 1 or has_fixed_shapes(self.model)
        if term.kind != fractions.ROWS or (is_sure and not term.by_weight):
            return term
        return dataclasses.replace(term, kind=fractions.DATA)

    @property
    def mask_epsilons(self):
        """What is added to the denominators that the data give, by group."""
        return {
            f"loss{k}": t.mask_epsilon
            for k, t in enumerate(self.terms)
            if t.kind == fractions.DATA
        }

    def normalize_loss(self, value, k):
        """Return the value of loss k, divided if its denominator is known."""
        value, term = tf.cast(value, self.dtype), self.terms[k]
        if term.kind != fractions.ROWS or term.per_row is None:
            return value
        return value / (term.per_row * self.rows)

    def targets(self, terms, added, rows):
        """Return by group what of a microbatch's loss is differentiated."""
        values_by_group = {}
        for k, term in enumerate(terms):
            key, value = self.target(term, k, rows)
            key = self.loss_prefix(k) + key
            values_by_group.setdefault(key, []).append(
                times(value, term.loss_weight)
            )
        for k, (loss, kind) in enumerate(self._added_terms(added)):
            key = self.added_prefix(k) + self.added_group(kind)
            share = self._added_share(loss, kind, rows)
            values_by_group.setdefault(key, []).append(share)
        if not values_by_group:
            raise ValueError(messages.no_loss(self.model))
        return {
            key: tf.add_n(values) for key, values in values_by_group.items()
        }

    def loss_prefix(self, k):
        """Return what the groups of loss k begin with."""
        del k
        return ""

    def added_prefix(self, k):
        """Return what the groups of the `add_loss` term k begin with."""
        del k
        return ""

    def target(self, term, k, rows):
        """Return the group of loss k, and its part in the group's target."""
        value = self.normalize_loss(term.numerator, k)
        if term.kind == fractions.DATA:
            # Divided by something of the right size, so that half precision
            # does not overflow, and multiplied afterwards.
            return f"loss{k}", value / rows
        return "batch" if self.is_single_batch else term.kind, value

    def added_group(self, kind):
        """Return the group of an `add_loss` term of its kind."""
        return "batch" if self.is_single_batch else kind

    def _added_terms(self, added):
        """Return pairs of an `add_loss` term, a number, and its kind."""
        kinds = self._find_added_kinds() if added else ()
        terms = [tf.cast(tf.reduce_sum(loss), self.dtype) for loss in added]
        return list(zip(terms, kinds, strict=True))

    def _added_share(self, loss, kind, rows):
        """Return the part of a microbatch's `add_loss` term in the batch's."""
        return loss if kind == fractions.SUM else loss * (rows / self.rows)

    def loss_values(self, terms, added, rows):
        """Return the values of one microbatch that `loss` needs."""
        added_total = tf.zeros([], self.dtype)
        for loss, kind in self._added_terms(added):
            added_total += self._added_share(loss, kind, rows)
        return {
            "numerators": [t.numerator for t in terms],
            "denominators": [t.denominator for t in terms],
            "added": added_total,
        }

    def totals(self, sums):
        """Return the sums over all replicas of those of this replica."""
        if not self.several:
            return sums
        # A replica without samples adds zeros, where its means are NaN.
        sums = replicas.zero_without_samples(self.count, sums)
        metrics, norms = sums.pop("metrics", None), sums.pop("norms", None)
        outputs = sums.pop("outputs", None)
        replicas.add(self.model.metrics_variables, metrics or ())
        norms = replicas.gather_rows(norms)
        sums = replicas.sum_over_replicas(sums)
        return {**sums, "norms": norms, "outputs": outputs}

    def groups(self, totals):
        """Return the sums of the batch, by group: (gradients, denominator)."""
        groups = {}
        for key, gradients in totals["gradients"].items():
            denominator, divisor = None, divisor_of(key)
            if divisor == fractions.ROWS:
                # `normalize_loss` has divided by this batch's samples.
                denominator = self.rows
                gradients = [times(g, denominator) for g in gradients]
            elif divisor in self.mask_epsilons:
                k = int(divisor.removeprefix("loss"))
                denominator = tf.cast(totals["denominators"][k], self.dtype)
            groups[key] = gradients, denominator
        return groups

    def loss(self, totals):
        """Return the loss of the batch, and track those of several outputs."""
        values = []
        for k, term in enumerate(self.terms):
            value = totals["numerators"][k]
            if term.kind == fractions.DATA:
                denominator = totals["denominators"][k] + term.mask_epsilon
                value = tf.math.divide_no_nan(value, denominator)
            values.append(self.normalize_loss(value, k))
        losses = compiled_loss(self.model)

        def track():
            # The mean over no sample is NaN.
            with fractions.tracking_where_present(losses, self.rows > 0):
                fractions.track(losses, values, self.static_rows)

        replicas.update(self.model.metrics_variables, track)
        loss = regularization_loss(self.variables) + totals["added"]
        for value, term in zip(values, self.terms):
            loss += times(value, term.loss_weight)
        return loss


def divide_groups(groups, mask_epsilons):
    """Return the sum of `groups`, each over its denominator and epsilon."""
    result = None
    for key, (gradients, denominator) in groups.items():
        if denominator is not None:
            divisor = denominator + mask_epsilons.get(divisor_of(key), 0.0)
            gradients = map_tensors(
                lambda g, divisor=divisor: tf.math.divide_no_nan(
                    g, tf.cast(divisor, g.dtype)
                ),
                gradients,
            )
        result = gradients if result is None else plus(result, gradients)
    return result


def divisor_of(key):
    """Return the part of a group's key that says what D is."""
    return key.rpartition("_")[2]


def unscaled(gradients, scale):
    """Return gradients as tensors, divided by the loss scale, if any."""
    dense = map_tensors(tf.convert_to_tensor, gradients)
    if scale is None:
        return dense
    return map_tensors(lambda g: g / tf.cast(scale, g.dtype), dense)


@dataclasses.dataclass
class PartOfBatch:
    """What a mode must know about a batch when it sees only a part of it.

    Attributes:
        model: the compiled model.
        x, y, sample_weight: the part's inputs, targets and weights.
        n: the number of samples in the whole batch.
        scale: the loss scale, or None.
        aggregation: as it is at this step, or None.
        loss: `loss(batch, y_pred, added)`: the share in the whole batch's loss
            of the part's samples, or of some: their `batch` (x, y,
            sample_weight), the model's outputs for them, and the list of the
            `add_loss` terms. Without regularisers.
        padded: the `PaddedBatch` whose batch the part is, or None.
        options: the `StepOptions` of the step.

    Example: that of `PartialSums`, whose `partial_sums` takes one.
    """

    model: Any
    x: Any
    y: Any
    sample_weight: Any
    n: Any
    scale: Any
    aggregation: Any
    loss: Callable[..., Any]
    padded: Any = None
    options: StepOptions = dataclasses.field(default_factory=StepOptions)

    #: Whether it is all of its batch, and `target` Keras's own loss.
    is_whole = False
    is_single = False

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Open a context for the forward pass and the loss."""
        return contextlib.nullcontext()

    def call(self) -> tuple[Any, list[Any]]:
        """Return the model's outputs, and the terms given to `add_loss`."""
        return call_with_postponed(self.model, self.x)

    def target(self, y_pred: Any, added: Any, training: bool = True) -> Any:
        """Return what to differentiate: the loss times the loss scale.

        Args:
            y_pred: the model's outputs for the part.
            added: the terms given to `add_loss` meanwhile.
            training: whether layers were called for training.
        """
        del training
        batch = self.x, self.y, self.sample_weight
        return times(self.loss(batch, y_pred, added), self.scale)


def call_with_postponed(model, x):
    """Return a model's outputs and `add_loss` terms; it assigns at the end."""
    with replicas.PostponedUpdates() as scope:
        y_pred = views.call_views(model, x)
    scope.assign(sample_count(x))
    return y_pred, scope.losses


class WeightedSums(MicrobatchSums):
    """Sums with the weights of an aggregation, as a mode supplies them.

    A sample's gradient is scaled as in the whole batch, so all denominators
    must be known before the first norm. They come from the size of the batch,
    or from a first pass over its masks and weights.
    """

    #: The sizes to which XLA's parts are padded; None: XLA compiles no parts.
    sizes = None

    def __init__(self, mode, aggregation, options, **of_batch):
        super().__init__(**of_batch)
        self.mode, self.aggregation = mode, aggregation
        self.options = options
        self._denominators: Any = []
        self._group = "batch" if self.is_single_batch else fractions.ROWS

    def denominators(self, x, y, sample_weight):
        """Return those of a microbatch, which add up; nothing is assigned."""
        # In a graph, ops that do not affect the denominators are pruned.
        with keras.StatelessScope():
            y_pred = views.call_views(self.model, x)
        terms = self.evaluate(x, y, y_pred, sample_weight)
        self._require_known(terms)
        return [t.denominator for t in terms]

    def set_denominators(self, sums):
        """Take the sums of `denominators` of this replica's microbatches."""
        sums = replicas.sum_over_replicas(
            replicas.zero_without_samples(self.count, sums or [])
        )
        self._denominators = list(sums)

    def _generalize_term(self, term):
        """Keep the length of this batch; `_require_known` demands it of all."""
        if term.kind == fractions.ROWS and not term.by_weight:
            return term
        return super()._generalize_term(term)

    def _require_known(self, terms):
        if self.is_single_batch:
            return
        for term in terms:
            if term.kind == fractions.DATA and term.per_row is None:
                raise ValueError(messages.unknown_loss_length(term.name))
            if term.kind != fractions.ROWS:
                raise ValueError(messages.unknown_divisor(term.name))
        counts = [t.per_row for t in terms]
        previous = self.model.gradient_state.values_per_sample(counts)
        for term, old, new in zip(terms, previous, counts):
            if old != new:
                raise ValueError(
                    messages.changed_loss_length(term.name, old, new)
                )

    def __call__(self, x, y, sample_weight, index):
        """Return the weighted sums and the norms of one microbatch."""
        function = self._part_sums
        if self.mode.needs_graph and tf.executing_eagerly():
            function = functools.partial(traced_once, function)
        return function((x, y, sample_weight), index)

    def _part_sums(self, batch, index):
        x, y, sample_weight = batch
        if self.sizes is None:
            y_pred, sums = self._mode_sums(x, y, sample_weight)
        else:
            y_pred, sums = self._compiled_sums(batch)
        norms = sums["norms"]
        if norms is not None:
            # At their places in the whole batch, so that norms add up, too.
            norms = placed(norms, index, self.count)
        results = self.metrics.of_part(
            x, y, y_pred, sample_weight=sample_weight, index=index
        )
        return {**sums, **results, "norms": norms}

    def _compiled_sums(self, batch):
        """Return `_mode_sums` of a padded part, compiled by XLA on its own."""
        # Metrics are not compiled: they see the part as it was.
        padded = PaddedBatch(batch, self.sizes)

        def sums(*batch):
            y_pred, results = self._mode_sums(*batch, padded=padded)
            # Outside `tf.IndexedSlices` would not know their shape.
            results = map_tensors(tf.convert_to_tensor, results)
            return y_pred, map_tensors(mask_of, y_pred), results

        function = tf.function(sums, autograph=False, jit_compile=True)
        y_pred, masks, results = function(*padded.batch)
        flat = tf.nest.flatten(y_pred)
        for tensor, mask in zip(flat, tf.nest.flatten(masks), strict=True):
            if mask is not None:
                set_mask(tensor, mask)
        y_pred, results["norms"] = padded.cut((y_pred, results["norms"]))
        return y_pred, results

    def _mode_sums(self, x, y, sample_weight, *, padded=None):
        """Return the outputs, and what adds up but for the metrics."""
        rows = tf.cast(sample_count(x), self.dtype)
        evaluated = []

        def loss(batch, y_pred, added):
            x, y, sample_weight = batch
            terms = self.evaluate(x, y, y_pred, sample_weight)
            # First of the part, then of samples in it.
            evaluated.append((terms, added))
            rows = tf.cast(sample_count(x), self.dtype)
            return self.targets(terms, added, rows)[self._group]

        part = PartOfBatch(
            self.model,
            x,
            y,
            sample_weight=sample_weight,
            n=self.rows,
            scale=self.scale,
            aggregation=self.aggregation,
            loss=loss,
            padded=padded,
            options=self.options,
        )
        sums = self.mode.partial_sums(self.model, part)
        terms, added = evaluated[0]
        if padded is not None:
            terms = [_without_padding(term, padded) for term in terms]
        variables = self.variables
        return sums.y_pred, {
            "gradients": {self._group: with_shapes(sums.gradients, variables)},
            "norms": sums.norms,
            "plain": with_shapes(sums.plain, variables),
            **self.loss_values(terms, added, rows),
        }

    def target(self, term, k, rows):
        value = self.normalize_loss(term.numerator, k)
        if term.kind == fractions.DATA:
            divisor = tf.cast(self._denominators[k], self.dtype)
            value = tf.math.divide_no_nan(value, divisor + term.mask_epsilon)
        return self._group, value

    def added_group(self, kind):
        # The part of a sum in a mean over later samples is not known.
        if kind == fractions.SUM and not self.is_single_batch:
            raise ValueError(messages.SUM_OVER_STEPS)
        return self._group


def _without_padding(term, padded):
    """Return a term of the loss without what added samples add to it."""
    values = padded.weights(term.by_sample)
    return dataclasses.replace(term, numerator=tf.reduce_sum(values))


def has_fixed_shapes(model):
    """Whether every batch of a functional model has the same shapes."""
    inputs = getattr(model, "inputs", None)
    return bool(inputs) and all(
        None not in t.shape[1:] for t in tf.nest.flatten(inputs)
    )
