"""Microbatches of a virtual batch, whose samples are clipped one by one."""

from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.losses import by_kind
from keras_pergrad.modes import loss_fractions
from keras_pergrad.modes.base import PartOfBatch, call_model
from keras_pergrad.modes.microbatch_sums import Contributions, times
from keras_pergrad.modes.microbatches import sum_over
from keras_pergrad.modes.traced_step import traced_once


class WeightedContributions(Contributions):
    """Contributions summed with the weights of an aggregation.

    A sample's gradient is scaled as in the whole virtual batch, so all
    denominators must be known before the first norm. They come from the size
    of the batch, or from a first pass over its masks and weights.

    Args:
        inner: the mode that gives the weighted sums.
        *args: as for `Contributions`.
    """

    def __init__(self, inner, *args):
        super().__init__(*args)
        if not self.alone:
            self.sums = [_require_mean(kind) for kind in self.sums]
        self.inner = inner
        self._denominators: Any = []

    def look_through(self, batch, size=None):
        """Find the denominators of the batch; nothing assigned is kept.

        In a graph, ops that do not affect the denominators are pruned.

        Args:
            batch: the inputs, targets and sample weights.
            size: the number of samples in a microbatch; None: all at once.
        """

        def denominators(x, y, sample_weight):
            with keras.StatelessScope():
                y_pred = call_model(self.model, x)
            terms = self.evaluate(x, y, y_pred, sample_weight)
            self._require_known(terms)
            return [t.denominator for t in terms]

        found = sum_over(denominators, batch, size)
        found = replicas.total(replicas.present(self.count, found or []))
        self._denominators = list(found)

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
                raise ValueError(_NO_LENGTH.format(name=term.name))
            if term.kind != loss_fractions.ROWS:
                raise ValueError(_UNKNOWN.format(name=term.name))
        now = [t.per_row for t in terms]
        before = self.model.gradient_state.values_of_a_sample(now)
        for term, old, new in zip(terms, before, now):
            if old != new:
                raise ValueError(
                    _OTHER_LENGTH.format(name=term.name, old=old, new=new)
                )

    def __call__(self, x, y, sample_weight, index):
        """Return the weighted sums and the norms of one microbatch."""
        part = x, y, sample_weight, index
        if self.inner.needs_graph and tf.executing_eagerly():
            return traced_once(self._sums, *part)
        return self._sums(*part)

    def _sums(self, x, y, sample_weight, index):
        rows = tf.cast(tf.shape(first_tensor(x))[0], self.dtype)
        noted = []

        def loss(y_pred, added):
            terms = self.evaluate(x, y, y_pred, sample_weight)
            noted.append((terms, added))
            return self._target(terms, added, rows)

        weights = self._added(1 / self.rows)
        part = PartOfBatch(loss, self.rows, weights, y, sample_weight)
        y_pred, gradients, norms, *plain = self.inner.weighted_sum(
            self.model, x, part, self.scale
        )
        if norms is not None:
            shape = tf.concat([[self.count], tf.shape(norms)[1:]], 0)
            groups = norms.shape[1:]
            norms = tf.scatter_nd(tf.expand_dims(index, 1), norms, shape)
            norms.set_shape([None, *groups])
        metrics = self.update_metrics(x, y, y_pred, sample_weight)
        (terms, added), key = noted[0], "batch" if self.alone else "rows"
        return {
            "gradients": {key: gradients},
            "metrics": metrics,
            "norms": norms,
            "plain": plain[0] if plain else None,
            **self.parts_of_loss(terms, added, rows),
        }

    def _target(self, terms, added, rows):
        """Return the microbatch's part in the loss of the whole batch."""
        values = []
        for k, term in enumerate(terms):
            value = self.fixed(term.numerator, k)
            if term.kind == loss_fractions.DATA:
                below = tf.cast(self._denominators[k], self.dtype) + term.slack
                value = tf.math.divide_no_nan(value, below)
            values.append(times(value, term.loss_weight))
        weights = self._added(rows / self.rows)
        for loss, weight in zip(added, weights, strict=True):
            values.append(tf.cast(tf.reduce_sum(loss), self.dtype) * weight)
        return tf.add_n(values)

    def _added(self, share):
        """Return the factors of `add_loss` terms of this share of the batch."""
        # The part of a sum in a mean over later samples is not known. XLA
        # drops the assertion that there is no sum, but XLA does not drop NaN.
        whole = 1.0 if self.alone else float("nan")
        whole = whole * tf.ones_like(share)
        return [by_kind(kind, whole, share) for kind in self.sums]


def _require_mean(kind):
    """Raise where a term of `add_loss` is a sum; return the kind otherwise."""
    check = tf.debugging.Assert(kind < 0.5, [_SUM_OVER_STEPS])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.identity(kind)


_SUM_OVER_STEPS = (
    "A loss given to `add_loss` is a sum over the samples of the batch, so "
    "that over several steps the scale of a sample's gradient is not known "
    "before it is clipped. Reduce it with ops.mean over all axes, or use "
    "steps=1 with larger batches."
)
_NO_LENGTH = (
    "The number of values of the loss {name!r} for one sample is not known "
    "while the step is traced, since an axis of the data (the length of the "
    "sequences, say) has no fixed size there. Over several steps it must be "
    "the same in all batches, or the scale of a sample's gradient is not "
    "known before it is clipped. Pass arrays, pad the batches of a "
    "tf.data.Dataset to one length (padded_batch, or map with "
    "tf.ensure_shape), use steps=1 with larger batches, or call compile() "
    "again if an earlier fit had another length."
)
_OTHER_LENGTH = (
    "The loss {name!r} has {new} values for one sample, and had {old} in the "
    "batches before. Over several steps it must be the same in all batches, or "
    "the scale of a sample's gradient is not known before it is clipped. Pad "
    "the sequences to one length, use steps=1 with larger batches, or call "
    "compile() again before training on another length."
)
_UNKNOWN = (
    "The loss {name!r} is not a mean over a number of values in proportion to "
    "the number of samples, so that over several steps the scale of a "
    "sample's gradient is not known before it is clipped. Use steps=1 with "
    "larger batches, or a loss with reduction 'sum_over_batch_size' on "
    "outputs without mask."
)
