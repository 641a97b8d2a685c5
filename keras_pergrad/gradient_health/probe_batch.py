"""The fixed batch that gradients are measured on."""

import contextlib

import keras

from keras_pergrad.common.batches import split_numbers
from keras_pergrad.common.refusal_messages import without_batch_mode
from keras_pergrad.functions.batch_loss import MissingLoss, try_loss
from keras_pergrad.functions.data_passes import require_call
from keras_pergrad.functions.given_batch import build_for, explaining
from keras_pergrad.gradient_health.gradient_meter import GradientMeter
from keras_pergrad.keras_internals.fit.train_function import look_ahead

_STATISTICS_IN_STEP = (
    "GradientVariance measures the gradient of that loss. For a train_step of "
    "your own derive the model from keras_pergrad.PerGradModel and compile it "
    "with gradient_mode=keras_pergrad.Vectorized(statistics=True): then each "
    'compute_gradients(loss_fn, x, name="d") logs d_gradient_norm, '
    "d_gradient_variance and d_gradient_noise_scale of its own loss."
)


def require_one_loss(model):
    """Refuse a model without a call, whose own step computes its losses."""
    require_call(model, _STATISTICS_IN_STEP)


def build(model, batch):
    """Build a model for a batch, if its first call does."""
    with _explaining(model, batch):
        build_for(model, batch)


def make_meter(model, batch, quantities=None):
    """Return the `GradientMeter` of a batch."""
    with _explaining(model, batch):
        meter = GradientMeter(model, batch, quantities)
        # A label or an id out of range fails in no trace.
        try_loss(model, batch)
        return meter


@contextlib.contextmanager
def _explaining(model, batch):
    """Say of an error that it is of the probe."""
    try:
        with explaining(model, batch):
            yield
    except MissingLoss as error:
        raise MissingLoss(
            f"GradientVariance: {error}. {_STATISTICS_IN_STEP}"
        ) from None


def unmeasured_message(meter, instruments):
    """Return a message on what is not measured of the samples, or None."""
    if meter.plan.undefined is not None:
        # The error advises another gradient mode, which does not help here.
        reason = without_batch_mode(meter.plan.undefined)
        return (
            f"no variance within the batch, since {reason} The other values "
            "are measured."
        )
    if "alpha" in instruments and not meter.plan.has_losses:
        return (
            "no 'alpha', since each sample's own loss is not known: the "
            "model has a `compute_loss` of its own, or a loss that does "
            "not return a value for each sample."
        )
    return None


def first_batch(model, iterator):
    """Return the next (x, y, sample_weight) and an iterator from there on.

    None instead of a batch at the end of the data.
    """
    batches, iterator = look_ahead(model, iterator)
    if batches is None:
        raise ValueError(_no_first_batch(model))
    if not batches:
        return None, iterator
    x, *targets = keras.utils.unpack_x_y_sample_weight(batches[0])
    return (split_numbers(x)[0], *targets), iterator


def require_one_replica(model):
    """Refuse, without a probe, a model whose batches are split."""
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(_no_first_batch(model))


def _no_first_batch(model):
    return (
        "`probe` expected a batch, since the first one cannot be looked at "
        "before it is split over the replicas of "
        f"{type(model.distribute_strategy).__name__}. Received: probe=None. "
        "Pass one, such as GradientVariance(probe=(x[:64], y[:64]))."
    )
