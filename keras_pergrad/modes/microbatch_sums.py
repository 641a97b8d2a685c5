"""The sums of microbatches, for the gradient and the loss of their batch.

Every term of the loss is N / D (see `loss_fractions`). Terms with the same D
share a backward pass and a sum; each sum is divided by its D once, at the end:

    "batch"   D is known beforehand: if each batch makes its own update, all
              terms that are sums or in proportion to the number of samples
    "sum"     D = 1
    "rows"    D = the number of samples
    "loss3"   D is that of the fourth loss alone, known from the data

What is summed for each task begins with its number, as "task0_rows".
"""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.keras_internals import (
    loss_fractions,
    replica_metrics,
    replicas,
)
from keras_pergrad.keras_internals.batches import (
    first_tensor,
    map_tensors,
    sample_count,
)
from keras_pergrad.keras_internals.losses import by_kind, noting_losses
from keras_pergrad.keras_internals.model_parts import (
    call_model,
    compiled_loss,
)
from keras_pergrad.keras_internals.penalties import regularization_loss


class MicrobatchSums:
    """A function of a microbatch whose results add up over the batch."""

    # `x` are the inputs of the batch, or of a replica's share in it; `alone`:
    # no other batch adds samples to the update.

    def __init__(self, model, x, scale, kinds, alone=True):
        self.model, self.scale = model, scale
        self.variables = list(model.trainable_variables)
        self.kinds, self.alone = kinds, alone
        self.static_rows = first_tensor(x).shape[0]
        self.dtype = keras.config.floatx()
        self.count = sample_count(x)
        self.several = replicas.several()
        self.own_rows = tf.cast(self.count, self.dtype)
        self.rows = replicas.total(self.own_rows)
        #: Of the first microbatch: their kinds hold for all.
        self.terms = []

    def __call__(self, x, y, sample_weight):
        """Run both passes of a microbatch; return what adds up, by name."""
        rows = tf.cast(sample_count(x), self.dtype)
        with tf.GradientTape(persistent=True) as tape:
            y_pred, added = self.call(x)
            terms = self.evaluate(x, y, y_pred, sample_weight)
            targets = self.targets(terms, added, rows)
            scaled = {k: times(t, self.scale) for k, t in targets.items()}
        gradients = {}
        target: Any
        for key, target in scaled.items():
            slopes = unscaled(tape.gradient(target, self.variables), self.scale)
            unit = rows if divisor_of(key) in self.mask_epsilons else None
            gradients[key] = [times(g, unit) for g in slopes]
        del tape
        return {
            "gradients": gradients,
            "metrics": self.update_metrics(x, y, y_pred, sample_weight),
            **self.parts_of_loss(terms, added, rows),
        }

    def call(self, x):
        """Return the model's outputs, and the terms given to `add_loss`."""
        added = []
        with noting_losses(self.model, added):
            return call_model(self.model, x), added

    def update_metrics(self, x, y, y_pred, sample_weight):
        """Update the metrics; on several replicas, return what to add."""
        # A loop of one replica cannot update what all replicas share.

        def update():
            self.model.compute_metrics(x, y, y_pred, sample_weight)

        if self.several:
            return replica_metrics.additions(
                self.model.metrics_variables, update
            )
        update()
        return None

    def evaluate(self, x, y, y_pred, sample_weight):
        """Return the compiled losses of a microbatch, as fractions."""
        terms = loss_fractions.evaluate(
            compiled_loss(self.model), y, y_pred, sample_weight
        )
        if not self.alone:
            terms = [self._for_any_batch(t) for t in terms]
        self.terms = self.terms or terms
        return terms

    def _for_any_batch(self, term):
        """Allow later batches to have longer samples, or weights."""
        sure = term.rank == 1 or _fixed_shapes(self.model)
        if term.kind != loss_fractions.ROWS or (sure and not term.by_weight):
            return term
        return dataclasses.replace(term, kind=loss_fractions.DATA)

    @property
    def mask_epsilons(self):
        """What is added to the denominators that the data give, by group."""
        return {
            f"loss{k}": t.mask_epsilon
            for k, t in enumerate(self.terms)
            if t.kind == loss_fractions.DATA
        }

    def fixed(self, value, k):
        """Return the value of loss k, divided if its denominator is known."""
        value, term = tf.cast(value, self.dtype), self.terms[k]
        if term.kind != loss_fractions.ROWS or term.per_row is None:
            return value
        return value / (term.per_row * self.rows)

    def targets(self, terms, added, rows):
        """Return by group what of a microbatch's loss is differentiated."""
        parts = {}
        for k, term in enumerate(terms):
            key, value = self.target(term, k, rows)
            key = self.prefix_of_loss(k) + key
            parts.setdefault(key, []).append(times(value, term.loss_weight))
        for k, (loss, kind) in enumerate(zip(added, self.kinds, strict=True)):
            loss = tf.cast(tf.reduce_sum(loss), self.dtype)
            for key, factor in self.added_by(kind, rows / self.rows).items():
                key = self.prefix_of_added(k) + key
                parts.setdefault(key, []).append(loss * factor)
        if not parts:
            raise ValueError(
                "No loss to compute. Provide a `loss` argument in `compile()`."
            )
        return {key: tf.add_n(values) for key, values in parts.items()}

    def prefix_of_loss(self, k):
        """Return what the groups of loss k begin with."""
        del k
        return ""

    def prefix_of_added(self, k):
        """Return what the groups of the `add_loss` term k begin with."""
        del k
        return ""

    def target(self, term, k, rows):
        """Return the group of loss k, and its part in the group's target."""
        value = self.fixed(term.numerator, k)
        if term.kind == loss_fractions.DATA:
            # Divided by something of the right size, so that half precision
            # does not overflow, and multiplied afterwards.
            return f"loss{k}", value / rows
        return "batch" if self.alone else term.kind, value

    def added_by(self, kind, share):
        """Return a factor by group for an `add_loss` term of its kind."""
        one, zero = tf.ones_like(share), tf.zeros_like(share)
        if self.alone:
            return {"batch": by_kind(kind, one, share)}
        return {
            loss_fractions.SUM: by_kind(kind, one, zero),
            loss_fractions.ROWS: by_kind(kind, zero, share),
        }

    def parts_of_loss(self, terms, added, rows):
        """Return the values of one microbatch that `loss` needs."""
        extra = tf.zeros([], self.dtype)
        for loss, kind in zip(added, self.kinds, strict=True):
            loss = tf.cast(tf.reduce_sum(loss), self.dtype)
            extra += by_kind(kind, loss, loss * rows / self.rows)
        return {
            "numerators": [t.numerator for t in terms],
            "denominators": [t.denominator for t in terms],
            "added": extra,
        }

    def totals(self, sums):
        """Return the sums over all replicas of those of this replica."""
        if not self.several:
            return sums
        sums = replicas.present(self.count, sums)
        metrics, norms = sums.pop("metrics", None), sums.pop("norms", None)
        replica_metrics.add(self.model.metrics_variables, metrics or ())
        if norms is not None:
            norms = replicas.gathered(norms)
        return {**replicas.total(sums), "norms": norms}

    def groups(self, totals):
        """Return the sums of the batch, by group: (gradients, denominator)."""
        groups = {}
        for key, gradients in totals["gradients"].items():
            below, divisor = None, divisor_of(key)
            if divisor == loss_fractions.ROWS:
                below = self.rows
                gradients = [times(g, below) for g in gradients]
            elif divisor in self.mask_epsilons:
                k = int(divisor.removeprefix("loss"))
                below = tf.cast(totals["denominators"][k], self.dtype)
            groups[key] = gradients, below
        return groups

    def loss(self, totals):
        """Return the loss of the batch, and track those of several outputs."""
        values = []
        for k, term in enumerate(self.terms):
            value = totals["numerators"][k]
            if term.kind == loss_fractions.DATA:
                denominator = totals["denominators"][k] + term.mask_epsilon
                value = tf.math.divide_no_nan(value, denominator)
            values.append(self.fixed(value, k))
        losses = compiled_loss(self.model)

        def track():
            # The mean over no sample is NaN.
            with loss_fractions.tracking_if(losses, self.rows > 0):
                loss_fractions.track(losses, values, self.static_rows)

        replica_metrics.update(self.model.metrics_variables, track)
        loss = regularization_loss(self.variables) + totals["added"]
        for value, term in zip(values, self.terms):
            loss += times(value, term.loss_weight)
        return loss


def divided(groups, mask_epsilons):
    """Return the sum of `groups`, each over its denominator and epsilon."""
    result = None
    for key, (gradients, denominator) in groups.items():
        if denominator is not None:
            below = denominator + mask_epsilons.get(divisor_of(key), 0.0)
            gradients = map_tensors(
                lambda g, below=below: tf.math.divide_no_nan(
                    g, tf.cast(below, g.dtype)
                ),
                gradients,
            )
        result = gradients if result is None else plus(result, gradients)
    return result


def divisor_of(key):
    """Return the part of a group's key that says what D is."""
    return key.rpartition("_")[2]


def times(value, factor):
    """Return the product; None stands for no value, or for a factor of one."""
    if value is None or factor is None:
        return value
    # A cast would take a Python number through single precision.
    factor = tf.cast(factor, value.dtype) if tf.is_tensor(factor) else factor
    return value * factor


def _fixed_shapes(model):
    """Whether every batch of a functional model has the same shapes."""
    inputs = getattr(model, "inputs", None)
    return bool(inputs) and all(
        None not in t.shape[1:] for t in tf.nest.flatten(inputs)
    )


def unscaled(gradients, scale):
    """Return gradients as tensors, divided by the loss scale, if any."""
    dense = map_tensors(tf.convert_to_tensor, gradients)
    if scale is None:
        return dense
    return map_tensors(lambda g: g / tf.cast(scale, g.dtype), dense)


def plus(first, second):
    """Return the sums of two lists of gradients, some of them None."""
    return [
        b if a is None else a if b is None else tf.convert_to_tensor(a) + b
        for a, b in zip(first, second, strict=True)
    ]
