"""A batch that the user gives, as tensors."""

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import require_arrays
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
    require_arrays(*batch[:2])
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
