"""The compiled losses of a microbatch, as numerators and denominators.

A Keras loss is N / D: N is the sum of its weighted values, and D, given by its
reduction, is one ("sum"), how many values there are, how many of them are not
masked, or the sum of their weights. Both N and D add up over microbatches;
their quotient does not.
"""

import contextlib
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.data.views import (
    count_views,
    rows_of_views,
    split,
)
from keras_pergrad.keras_internals.losses.compiled import losses_replaced
from keras_pergrad.keras_internals.losses.losses import consistent_hinge_labels
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    entries_of,
    has_own_loss,
    mask_of,
    patched_attribute,
    set_mask,
)

SUM = "sum"
ROWS = "rows"
DATA = "data"


class NotAdditive(ValueError):
    """A loss is not the sum of what parts of a batch add to it."""


@dataclasses.dataclass
class LossFraction:
    """One compiled loss of a microbatch.

    Attributes:
        name: the loss's name, for errors.
        kind: what the denominator is: "sum": 1; "rows": in proportion to the
            number of samples; "data": known only from the data.
        numerator: the sum of the weighted values, without the loss weight.
        by_sample: each sample's part of the numerator, (n,).
        denominator: the microbatch's part of it (None for "sum").
        mask_epsilon: what Keras adds once to the sum of the denominators.
        loss_weight: from `compile(loss_weights=...)`, or None.
        per_row: the number of values of one sample, if known while tracing.
        rank: how many axes they have.
        by_weight: whether sample weights make part of the denominator.
    """

    name: str
    kind: str
    numerator: tf.Tensor
    by_sample: tf.Tensor
    denominator: tf.Tensor | None
    mask_epsilon: float
    loss_weight: float | None
    per_row: int | None
    rank: int
    by_weight: bool


def evaluate(compile_loss, y, y_pred, sample_weight):
    """Return the compiled losses as fractions, or raise `NotAdditive`."""
    if compile_loss is None:
        return []
    views = count_views(y_pred)
    _, y, y_pred, sample_weight = rows_of_views(
        None, y, y_pred, sample_weight=sample_weight
    )
    fractions = []
    recorders = [
        _FractionRecorder(entry, fractions)
        for entry in entries_of(compile_loss)
    ]
    # The running means of the outputs' losses are updated afterwards.
    with losses_replaced(compile_loss, recorders):
        compile_loss(y, y_pred, sample_weight)
    if not tf.nest.is_nested(y) and not tf.nest.is_nested(y_pred):
        # If one output has several losses, Keras minimises the first.
        fractions = fractions[:1]
    return (
        [_mean_over_views(f, views) for f in fractions] if views else fractions
    )


def _mean_over_views(fraction, views):
    """Return the fraction of a sample's mean loss over its views."""
    by_sample = split(fraction.by_sample, views)
    denominator = fraction.denominator
    return dataclasses.replace(
        fraction,
        numerator=fraction.numerator / views,
        by_sample=tf.reduce_mean(by_sample, 1),
        denominator=None if denominator is None else denominator / views,
    )


def require_additive_loss(model):
    """Refuse a model that overrides `compute_loss`: its terms are unknown."""
    if has_own_loss(model):
        raise NotAdditive(
            f"{type(model).__name__} overrides compute_loss, so that it is "
            "not known how its loss adds up over the parts of a batch. Put "
            "the loss into a keras.losses.Loss for compile(loss=...) or into "
            "add_loss(), or use gradient_mode='batch'."
        )


def numerators(model, y, y_pred, sample_weight):
    """Return the sums of the losses' values; none for an own `compute_loss`."""
    if has_own_loss(model):
        return []
    with consistent_hinge_labels():
        fractions = evaluate(compiled_loss(model), y, y_pred, sample_weight)
    return [fraction.numerator for fraction in fractions]


def sample_losses(model, y, y_pred, *, sample_weight):
    """Return what each sample adds to the compiled losses, (n,), or None."""
    if has_own_loss(model):
        return None
    try:
        with consistent_hinge_labels():
            terms = evaluate(compiled_loss(model), y, y_pred, sample_weight)
    except NotAdditive:
        return None
    total = None
    for term in terms:
        sample_values = divided(term.by_sample, term)
        total = sample_values if total is None else total + sample_values
    return total


def divided(numerator, term):
    """Return a part of a loss's numerator as it counts in the loss's value.

    `term` is the `LossFraction` of the whole batch.
    """
    if term.denominator is not None:
        denominator = tf.cast(term.denominator, numerator.dtype)
        divisor = denominator + term.mask_epsilon
        numerator = tf.math.divide_no_nan(numerator, divisor)
    if term.loss_weight is not None:
        numerator *= term.loss_weight
    return numerator


def track(compile_loss, values, samples):
    """Update the running means of several outputs' losses, unweighted."""
    metrics = [] if compile_loss is None else compile_loss.metrics
    for metric, value in zip(metrics, values):
        metric.update_state(value, sample_weight=samples)


@contextlib.contextmanager
def tracking_where_present(compile_loss, present):
    """Leave these running means as they were where no sample is `present`."""
    metrics = [] if compile_loss is None else compile_loss.metrics
    saved = [
        (v, tf.identity(tf.convert_to_tensor(v.value)))
        for metric in metrics
        for v in metric.variables
    ]
    yield
    for variable, old in saved:
        new = tf.convert_to_tensor(variable.value)
        variable.assign(tf.where(present, new, old))


def measured_epsilon():
    """Return what this version of Keras adds to a mask's sum: 0 or epsilon."""
    # One of two values is masked and the error is 1: the loss is 1 / (1 + ε).
    with tf.init_scope():
        y_pred = tf.zeros([2, 1], tf.float64)
        set_mask(y_pred, tf.constant([True, False]))
        loss = keras.losses.MeanAbsoluteError(dtype="float64")
        value = loss(tf.ones([2, 1], tf.float64), y_pred)
        return _scale_of_means() / float(np.asarray(value)) - 1


def _scale_of_means():
    """Return Keras's 1 / number of replicas, measured: it may be rounded."""
    with tf.init_scope():
        loss = keras.losses.MeanAbsoluteError(dtype="float64")
        ones = tf.ones([1, 1], tf.float64)
        return float(np.asarray(loss(ones, tf.zeros_like(ones))))


class _FractionRecorder:
    """A substitute for a loss that records its numerator and denominator."""

    def __init__(self, entry, fractions):
        self.loss = entry.loss
        self.loss_weight = entry.loss_weights
        self.fractions = fractions

    def __call__(self, y_true, y_pred, sample_weight=None):
        loss = self.loss
        _require_additive(loss)
        call, values = loss.call, []

        def recording_call(*args):
            values.append(call(*args))
            _require_rows(loss, values[0], y_pred, sample_weight=sample_weight)
            return values[0]

        with (
            _with_reduction(loss, None),
            patched_attribute(loss, "call", recording_call),
        ):
            weighted = loss(y_true, y_pred, sample_weight)
        # Keras has applied mask and sample weights, and reduced nothing.
        numerator = tf.reduce_sum(weighted)
        kind, denominator, mask_epsilon = self._denominator(
            y_true, y_pred, sample_weight, values=values[0], weighted=weighted
        )
        self.fractions.append(
            LossFraction(
                loss.name,
                kind,
                numerator,
                by_sample=tf.reduce_sum(
                    weighted, list(range(1, weighted.shape.rank))
                ),
                denominator=denominator,
                mask_epsilon=mask_epsilon,
                loss_weight=self.loss_weight,
                per_row=weighted.shape[1:].num_elements(),
                rank=weighted.shape.rank,
                by_weight=loss.reduction == "mean_with_sample_weight",
            )
        )
        return numerator

    def _denominator(self, y_true, y_pred, sample_weight, *, values, weighted):
        loss = self.loss
        if loss.reduction == "sum":
            return SUM, None, 0.0
        mask = mask_of(values)
        masked = mask is not None or mask_of(y_pred) is not None
        by_weight = loss.reduction == "mean_with_sample_weight"
        if not masked and not (by_weight and sample_weight is not None):
            count = tf.cast(tf.size(weighted), weighted.dtype)
            is_static = weighted.shape[1:].is_fully_defined()
            return (ROWS if is_static else DATA), count, 0.0
        # The loss of ones is the sum, or mean, of the weights alone, masked and
        # broadcast by Keras as for the loss itself.
        ones = tf.ones_like(values)
        if mask is not None:
            set_mask(ones, mask)
        weights = sample_weight if by_weight else None
        with patched_attribute(loss, "call", lambda *_: ones):
            with _with_reduction(loss, "sum"):
                total = loss(y_true, y_pred, weights)
            if not by_weight:
                return DATA, total, measured_epsilon()
            mean = loss(y_true, y_pred, weights)
            # Σ w / (Σ w / D) = D. Only means are divided by the replicas.
            total *= _scale_of_means()
        return DATA, tf.math.divide_no_nan(total, mean), 0.0


def _with_reduction(loss, reduction):
    """Give `loss` another reduction for a while."""
    return patched_attribute(loss, "reduction", reduction)


def _require_additive(loss):
    name = getattr(loss, "name", None) or repr(loss)
    why = None
    if not isinstance(loss, keras.losses.Loss):
        why = "it is no keras.losses.Loss, so that its reduction is unknown"
    elif type(loss).__call__ is not keras.losses.Loss.__call__:
        why = "it overrides __call__, so that its reduction is unknown"
    elif loss.reduction in (None, "none"):
        why = "it has no reduction, so that it is not one number for the batch"
    elif isinstance(loss, keras.losses.Circle):
        why = "it compares the samples of a batch with each other"
    if why:
        raise NotAdditive(_NOT_ADDITIVE.format(name=name, why=why))


def _require_rows(loss, values, y_pred, *, sample_weight):
    """Refuse values that do not belong to one sample each."""
    rows = tf.nest.flatten(y_pred)[0].shape[0]
    if values.shape.rank == 0:
        why = "it returns one number for the batch instead of one per sample"
    elif rows is not None and values.shape[0] not in (None, rows):
        why = (
            f"it returns values of shape {tuple(values.shape)} for {rows} "
            "samples, so that they do not belong to one sample each"
        )
    elif sample_weight is not None and not _have_matching_ranks(
        values, sample_weight
    ):
        # Keras would spread the weights along the wrong axis.
        why = (
            f"its values of shape {tuple(values.shape)} and the sample "
            f"weights of shape {tuple(sample_weight.shape)} differ in their "
            "number of axes"
        )
    else:
        return
    raise NotAdditive(_NOT_ADDITIVE.format(name=loss.name, why=why))


def _have_matching_ranks(a, b):
    """Whether Keras brings both to the same number of axes."""
    a, b = sorted((a, b), key=lambda t: t.shape.rank)
    return a.shape.rank == b.shape.rank or (
        a.shape.rank + 1 == b.shape.rank and b.shape[-1] == 1
    )


_NOT_ADDITIVE = (
    "The loss {name!r} cannot be added up over microbatches or replicas: "
    "{why}. Use a loss that returns one value per sample (or per position), "
    "with reduction 'sum', 'sum_over_batch_size' or "
    "'mean_with_sample_weight', or use gradient_mode='batch'."
)
