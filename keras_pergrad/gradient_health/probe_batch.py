"""The fixed batch that gradients are measured on."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batch_marks import split_numbers
from keras_pergrad.common.refusal_messages import without_batch_mode
from keras_pergrad.functions.batch_loss import MissingLoss
from keras_pergrad.gradient_health.gradient_meter import GradientMeter
from keras_pergrad.keras_internals.fit.train_function import look_ahead
from keras_pergrad.keras_internals.graphs.runs import as_in_fit


def as_batch(probe, name="probe"):
    """Return (x, y, sample_weight) as tensors, from what the user gave."""
    if not isinstance(probe, (tuple, list)) or not 1 <= len(probe) <= 3:
        received = type(probe).__name__
        if isinstance(probe, (tuple, list)):
            received += f" of {len(probe)}"
        raise ValueError(
            f"`{name}` expected a batch: (x, y) or (x, y, sample_weight) of "
            f"arrays. Received: a {received}"
        )
    batch = (*probe, None, None)[:3]
    try:
        batch = tf.nest.map_structure(_as_tensor, batch)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` expected arrays, or lists or dicts of arrays as the "
            f"model takes them. Received: {_describe(probe)}, which is no "
            f"tensor: {error}"
        ) from None
    sizes = {
        tensor.shape[0] if tensor.shape.rank else None
        for tensor in tf.nest.flatten(batch)
        if tensor is not None
    }
    if len(sizes) != 1 or sizes & {None, 0}:
        raise ValueError(
            f"`{name}` expected x, y and sample_weight with the same number of "
            f"samples on their first axis. Received: {_describe(probe)}"
        )
    return batch


def make_meter(model, batch, quantities=None):
    """Return a `GradientMeter` that is ready to measure."""
    try:
        gradient_meter = GradientMeter(model, batch, quantities)
        gradient_meter.prepare()
    except MissingLoss as error:
        raise MissingLoss(f"GradientVariance: {error}.") from None
    except Exception as error:  # whatever a model may say to a wrong input
        raise ValueError(
            "`probe` expected a batch like those that model "
            f"{model.name!r} is trained on. Received: {_describe(batch)}, for "
            f"which its gradient cannot be computed: {error}"
        ) from error
    return gradient_meter


def unmeasured_message(meter, instruments):
    """Return a message on what is not measured of the samples, or None."""
    if meter.undefined is not None:
        # The error advises another gradient mode, which does not help here.
        reason = without_batch_mode(meter.undefined)
        return (
            f"no variance within the batch, since {reason} The other values "
            "are measured."
        )
    if "alpha" in instruments and not meter.has_sample_losses:
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


def _as_tensor(part):
    return None if part is None else tf.convert_to_tensor(as_in_fit(part))


def _describe(probe):
    names = ("x", "y", "sample_weight")
    parts = [
        f"{name} of shape {np.shape(tensor)}"
        for name, part in zip(names, probe)
        for tensor in tf.nest.flatten(part)
        if tensor is not None
    ]
    return ", ".join(parts)
