"""Microbatches whose samples are weighted one by one, as by clipping.

A sample's gradient is scaled as in the whole batch, so all denominators must
be known before the first norm. They come from the size of the batch, or from a
first pass over its masks and weights.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.common import refusal_messages
from keras_pergrad.keras_internals import loss_fractions, replicas
from keras_pergrad.keras_internals.batches import (
    PaddedBatch,
    map_tensors,
    sample_count,
)
from keras_pergrad.keras_internals.losses import by_kind
from keras_pergrad.keras_internals.model_parts import (
    call_model,
    mask_of,
    set_mask,
)
from keras_pergrad.keras_internals.tracing import traced_once
from keras_pergrad.modes.microbatch_sums import MicrobatchSums, times


@dataclasses.dataclass
class PartOfBatch:
    """What a mode must know of a batch when it sees only a part.

    Attributes:
        model: the compiled model.
        x, y, sample_weight: the part's inputs, targets and weights.
        n: the number of samples in the whole batch.
        scale: the loss scale, or None.
        aggregation: as it is at this step, or None.
        loss: a function of the model's outputs and the list of `add_loss`
            terms: the part's share in the whole batch's loss, without
            regularisers.
        weights: for each `add_loss` term, the factor of one sample's in the
            batch's.
        padded: the `PaddedBatch` whose batch the part is, or None.

    Example: that of `PartialSums`, whose `partial_sums` takes one.
    """

    model: Any
    x: Any
    y: Any
    sample_weight: Any
    n: Any
    scale: Any
    aggregation: Any
    loss: Callable
    weights: list
    padded: Any = None

    #: Whether it is all of its batch, and `target` Keras's own loss.
    is_whole = False
    is_single = False

    def watched(self):
        """Open a context for the forward pass and the loss."""
        return contextlib.nullcontext()

    def call(self):
        """Return the model's outputs, and the terms given to `add_loss`."""
        return call_postponed(self.model, self.x)

    def target(self, y_pred, added, training=True):
        """Return what to differentiate: the loss times the loss scale.

        Args:
            y_pred: the model's outputs for the part.
            added: the terms given to `add_loss` meanwhile.
            training: whether layers were called for training.
        """
        del training
        return times(self.loss(y_pred, added), self.scale)

    def added_weights(self, replay):
        """Return the factor of a sample's `add_loss` terms in the target."""
        del replay
        return [times(w, self.scale) for w in self.weights]


def call_postponed(model, x):
    """Return a model's outputs and `add_loss` terms; it assigns at the end."""
    with replicas.Postponed() as scope:
        y_pred = call_model(model, x)
    scope.assign(sample_count(x))
    return y_pred, scope.losses


class WeightedSums(MicrobatchSums):
    """Sums with the weights of an aggregation, as a mode supplies them."""

    #: The sizes to which XLA's parts are padded; None: XLA compiles no parts.
    sizes = None

    def __init__(self, mode, aggregation, *args):
        super().__init__(*args)
        if not self.alone:
            self.kinds = [_require_mean(kind) for kind in self.kinds]
        self.mode, self.aggregation = mode, aggregation
        self._denominators: Any = []
        self._group = "batch" if self.alone else loss_fractions.ROWS

    def denominators(self, x, y, sample_weight):
        """Return those of a microbatch, which add up; nothing is assigned."""
        # In a graph, ops that do not affect the denominators are pruned.
        with keras.StatelessScope():
            y_pred = call_model(self.model, x)
        terms = self.evaluate(x, y, y_pred, sample_weight)
        self._require_known(terms)
        return [t.denominator for t in terms]

    def know_denominators(self, sums):
        """Take the sums of `denominators` of this replica's microbatches."""
        sums = replicas.total(replicas.present(self.count, sums or []))
        self._denominators = list(sums)

    def _for_any_batch(self, term):
        """Keep the length of this batch; `_require_known` demands it of all."""
        if term.kind == loss_fractions.ROWS and not term.by_weight:
            return term
        return super()._for_any_batch(term)

    def _require_known(self, terms):
        if self.alone:
            return
        for term in terms:
            if term.kind == loss_fractions.DATA and term.per_row is None:
                raise ValueError(refusal_messages.no_length(term.name))
            if term.kind != loss_fractions.ROWS:
                raise ValueError(refusal_messages.unknown_divisor(term.name))
        now = [t.per_row for t in terms]
        before = self.model.gradient_state.values_of_a_sample(now)
        for term, old, new in zip(terms, before, now):
            if old != new:
                raise ValueError(
                    refusal_messages.other_length(term.name, old, new)
                )

    def __call__(self, x, y, sample_weight, index):
        """Return the weighted sums and the norms of one microbatch."""
        part = x, y, sample_weight, index
        if self.mode.needs_graph and tf.executing_eagerly():
            return traced_once(self._of_part, *part)
        return self._of_part(*part)

    def _of_part(self, x, y, sample_weight, index):
        batch = x, y, sample_weight
        if self.sizes is None:
            y_pred, sums = self._sums(*batch)
        else:
            y_pred, sums = self._compiled(batch)
        norms = sums["norms"]
        if norms is not None:
            shape = tf.concat([[self.count], tf.shape(norms)[1:]], 0)
            groups = norms.shape[1:]
            norms = tf.scatter_nd(tf.expand_dims(index, 1), norms, shape)
            norms.set_shape([None, *groups])
        metrics = self.update_metrics(x, y, y_pred, sample_weight)
        return {**sums, "norms": norms, "metrics": metrics}

    def _compiled(self, batch):
        """Return `_sums` of a padded part, compiled by XLA on its own."""
        # Metrics are not compiled: they see the part as it was.
        padded = PaddedBatch(batch, self.sizes)

        def sums(*batch):
            y_pred, found = self._sums(*batch, padded=padded)
            # Outside `tf.IndexedSlices` would not know their shape.
            found = map_tensors(tf.convert_to_tensor, found)
            return y_pred, map_tensors(mask_of, y_pred), found

        function = tf.function(sums, autograph=False, jit_compile=True)
        y_pred, masks, found = function(*padded.batch)
        flat = tf.nest.flatten(y_pred)
        for tensor, mask in zip(flat, tf.nest.flatten(masks), strict=True):
            if mask is not None:
                set_mask(tensor, mask)
        if found["norms"] is not None:
            found["norms"] = found["norms"][: padded.n]
        return padded.outputs(y_pred), found

    def _sums(self, x, y, sample_weight, padded=None):
        """Return the outputs, and what adds up but for the metrics."""
        rows = tf.cast(sample_count(x), self.dtype)
        noted = []

        def loss(y_pred, added):
            terms = self.evaluate(x, y, y_pred, sample_weight)
            noted.append((terms, added))
            return self.targets(terms, added, rows)[self._group]

        weights = [
            self.added_by(kind, 1 / self.rows)[self._group]
            for kind in self.kinds
        ]
        known = self.rows, self.scale, self.aggregation, loss, weights
        part = PartOfBatch(self.model, x, y, sample_weight, *known, padded)
        sums = self.mode.partial_sums(self.model, part)
        terms, added = noted[0]
        if padded is not None:
            terms = [_of_present(term, padded) for term in terms]
        return sums.y_pred, {
            "gradients": {self._group: sums.gradients},
            "norms": sums.norms,
            "plain": sums.plain,
            **self.parts_of_loss(terms, added, rows),
        }

    def target(self, term, k, rows):
        value = self.fixed(term.numerator, k)
        if term.kind == loss_fractions.DATA:
            below = tf.cast(self._denominators[k], self.dtype)
            value = tf.math.divide_no_nan(value, below + term.mask_epsilon)
        return self._group, value

    def added_by(self, kind, share):
        # The part of a sum in a mean over later samples is not known. XLA
        # drops the assertion that there is no sum, but XLA does not drop NaN.
        whole = tf.ones_like(share) * (1.0 if self.alone else float("nan"))
        return {self._group: by_kind(kind, whole, share)}


def _of_present(term, padded):
    """Return a term of the loss without what added samples add to it."""
    values = padded.weights(term.by_sample)
    return dataclasses.replace(term, numerator=tf.reduce_sum(values))


def _require_mean(kind):
    """Raise where a term of `add_loss` is a sum; return the kind otherwise."""
    check = tf.debugging.Assert(kind < 0.5, [refusal_messages.SUM_OVER_STEPS])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(kind)
