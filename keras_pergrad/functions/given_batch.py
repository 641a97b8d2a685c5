"""A batch that the user gives, as tensors."""

import contextlib

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import require_arrays
from keras_pergrad.common.data_batches import require_weights
from keras_pergrad.functions.batch_loss import MissingLoss
from keras_pergrad.keras_internals.graphs.runs import as_in_fit
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    has_own_loss,
    require_inputs,
    require_no_texts,
    require_targets,
)
from keras_pergrad.keras_internals.replicas.advice import advising
from keras_pergrad.keras_internals.state.model import preserve_random_state


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
    require_arrays(*batch[:2])
    require_weights(batch[2])
    try:
        batch = tf.nest.map_structure(_as_tensor, batch)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` expected arrays, or lists or dicts of arrays as the "
            f"model takes them. Received: {describe_batch(probe)}, which is no "
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
            f"samples on their first axis. Received: {describe_batch(probe)}"
        )
    return batch


def _as_tensor(part):
    return None if part is None else tf.convert_to_tensor(as_in_fit(part))


@contextlib.contextmanager
def explaining(model, batch, name="probe"):
    """Say of an error that it is of this batch."""
    try:
        with advising():
            yield
    except MissingLoss:
        raise
    except Exception as error:  # whatever a model may say to a wrong input
        advice = " ".join(["", *getattr(error, "__notes__", ())])
        raise ValueError(
            f"`{name}` expected a batch like those that model {model.name!r} "
            f"is trained on. Received: {describe_batch(batch)}, for which its "
            f"gradient cannot be computed: {error}{advice}"
        ) from error


def build_for(model, batch):
    """Build a model for a batch, if its first call does; refuse others."""
    with preserve_random_state():
        require_targets(model, batch)
        require_inputs(model, batch[0])
        # One's own loss may look texts up.
        if not has_own_loss(model):
            require_no_texts(model, *batch[:2])
        build_symbolically(model, batch)


def describe_batch(probe):
    """Return the shapes of a batch's arrays, in words."""
    names = ("x", "y", "sample_weight")
    parts = [
        f"{name} of shape {np.shape(tensor)}"
        for name, part in zip(names, probe)
        for tensor in tf.nest.flatten(part)
        if tensor is not None
    ]
    return ", ".join(parts)
