"""The losses of a batch's samples, and the loss of a measured batch."""

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.losses.compiled import no_running_means
from keras_pergrad.keras_internals.losses.losses import (
    additional_losses,
    consistent_hinge_labels,
    recording_losses,
    total_loss,
)
from keras_pergrad.keras_internals.losses.regularizers import (
    regularization_loss,
)
from keras_pergrad.keras_internals.models.parts import (
    call_model,
    compiled_loss,
    has_own_loss,
)
from keras_pergrad.keras_internals.state.model import unchanged
from keras_pergrad.modes import fractions
from keras_pergrad.modes.inspection import require_any_batch_size

MEAN, SUM, NEITHER = "mean", "sum", "neither"
#: How many samples of a batch a trial takes.
_TRIAL_ROWS = 8
#: What a trial with another batch size may raise, `NotAdditive` included.
_TRIAL_ERRORS = ValueError, tf.errors.InvalidArgumentError


def is_mean_over_samples(model, batch):
    """Whether the loss is a mean over samples with equal weights.

    It is not if the denominator counts masks or weights, if layers add losses,
    or if that is not known. The model must be built.
    """
    try:
        fractions.require_additive_loss(model)
        x, y, sample_weight = _first_rows(batch, 1)
        added: list[Any] = []
        with (
            unchanged(model),
            recording_losses(model, added),
            consistent_hinge_labels(),
        ):
            y_pred = call_model(model, x, training=False)
            terms = fractions.evaluate(
                compiled_loss(model), y, y_pred, sample_weight
            )
    except _TRIAL_ERRORS:
        return False
    by_rows = all(term.kind == fractions.ROWS for term in terms)
    return bool(terms) and by_rows and not added


def batch_reduction(model, batch):
    """Return MEAN, SUM or NEITHER: how a loss depends on the batch's size.

    A batch with every sample twice tells: a mean is the same, a sum is twice
    as much. The answer is MEAN where this cannot be tried: with sparse tensors,
    and for a model of one batch size or with random outputs.
    """
    first_rows = _first_rows(batch, _TRIAL_ROWS)
    if any(isinstance(t, tf.SparseTensor) for t in tf.nest.flatten(first_rows)):
        return MEAN
    with contextlib.suppress(*_TRIAL_ERRORS):
        require_any_batch_size(model)
        doubled_rows = tf.nest.map_structure(
            lambda t: None if t is None else tf.concat([t, t], 0), first_rows
        )
        terms, repeated_terms, doubled_terms = (
            _terms(model, trial)
            for trial in (first_rows, first_rows, doubled_rows)
        )
        if not _is_close(terms, repeated_terms, 1) or len(terms) != len(
            doubled_terms
        ):
            return MEAN
        if _is_close(terms, doubled_terms, 1):
            return MEAN
        return SUM if _is_close(terms, doubled_terms, 2) else NEITHER
    return MEAN


def _terms(model, batch):
    """Return the loss without regularisers, and what layers add to it."""
    x, y, sample_weight = batch
    added: list[Any] = []
    with unchanged(model), no_running_means(compiled_loss(model)):
        with recording_losses(model, added):
            y_pred = call_model(model, x, training=False)
        total = total_loss(
            model,
            x,
            y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=False,
        )
        penalty = regularization_loss(model.trainable_variables)
        total -= tf.cast(penalty, total.dtype)
        return [np.sum(t, dtype="float64") for t in (total, *added)]


def _is_close(terms, other_terms, factor):
    terms, other_terms = np.array(terms) * factor, np.array(other_terms)
    return np.allclose(terms, other_terms, 1e-4, 1e-12, equal_nan=True)


def _first_rows(batch, count):
    """Return the first samples of a batch, as tensors."""

    def first(part):
        if part is None or isinstance(part, tf.SparseTensor):
            return part
        part = part[:count]
        is_ragged = isinstance(part, tf.RaggedTensor)
        return part if is_ragged else tf.convert_to_tensor(part)

    return tf.nest.map_structure(first, batch)


def require_loss(model, batch):
    """Refuse a model whose batches have no loss at all."""
    if compiled_loss(model) is None and not has_own_loss(model):
        _terms(model, batch)  # of add_loss, or an error that says what to do


def try_loss(model, batch):
    """Return the loss of a batch, so that it fails now if it does."""
    return _terms(model, batch)[0]


class MissingLoss(ValueError):
    """There is no loss to take a gradient of."""


def measured_loss(model, x, y, y_pred, sample_weight, training=True):
    """Return the scalar loss of a batch, after the forward pass."""
    del training
    if (
        compiled_loss(model) is None
        and not additional_losses(model)
        and not has_own_loss(model)
    ):
        raise MissingLoss(
            f"Model {model.name!r} was compiled without a loss, and that of a "
            "`train_step` of its own is not seen from outside. Expected "
            "compile(loss=...) with the loss that it is trained by, or a "
            "`compute_loss` or `add_loss` of the model's own. Received: no "
            "loss"
        )
    return total_loss(model, x, y, y_pred=y_pred, sample_weight=sample_weight)
