"""The model outputs that are differentiated."""

import math
import operator

import numpy as np
import tensorflow as tf


class Targets:
    """The outputs to differentiate, checked against the model's output.

    Attributes:
        kind: "all", "listed" or "own" (each sample has its own).
        indices: for "listed", which; for "own", one per sample; else none.
        single: whether one index was given, not a list.
        shape: the axes that the outputs add to a result, after the sample's.
    """

    def __init__(self, outputs, output_shape, samples):
        per_sample = tuple(output_shape[1:])
        count = None if None in per_sample else math.prod(per_sample)
        self.single = False
        self.indices: list | np.ndarray = []
        if outputs is None:
            self.kind, self.shape = "all", per_sample
            if count is None:
                raise ValueError(
                    f"the model's output of shape {tuple(output_shape)} has an "
                    "axis of unknown length, so it has no Jacobian. Choose "
                    "outputs by their indices."
                )
        elif isinstance(outputs, (list, tuple)):
            self.kind = "listed"
            self.indices = [_index(i) for i in outputs]
            self.shape = (len(self.indices),)
            if not self.indices:
                raise ValueError(
                    "`outputs` must name at least one output. Received: []"
                )
        elif np.ndim(outputs) == 0:
            self.kind, self.single, self.shape = "listed", True, ()
            self.indices = [_index(outputs)]
        else:
            self.kind, self.shape = "own", ()
            self.indices = _own(outputs, samples)
        if self.kind != "all" and count is not None:
            self._check_range(count, output_shape)

    def _check_range(self, count, output_shape):
        low, high = int(np.min(self.indices)), int(np.max(self.indices))
        if low < 0 or high >= count:
            raise ValueError(
                f"`outputs` must be from 0 to {count - 1}: the model's output "
                f"has shape {tuple(output_shape)}. Received: "
                f"{low if low < 0 else high}"
            )

    def of_chunk(self, start, size):
        """Return the indices of `size` samples, if there are indices."""
        if self.kind != "own":
            return np.zeros([0], np.int32)
        found = np.asarray(self.indices[start : start + size], np.int32)
        if len(found) < size:
            raise ValueError(
                f"`outputs` holds {len(self.indices)} indices, but x has more "
                "samples. Give one for each."
            )
        return found

    def check_end(self, samples):
        """Refuse indices that are left over after the last sample."""
        if self.kind == "own" and len(self.indices) > samples:
            raise ValueError(
                f"`outputs` holds {len(self.indices)} indices, but x has only "
                f"{samples} samples. Give one for each."
            )


def _index(value):
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value.numpy() if tf.is_tensor(value) else value)
    except TypeError:
        raise TypeError(
            "`outputs` must be None (all), an index, a list of indices, or an "
            f"integer array with one index a sample. Received: {value!r} of "
            f"type {type(value).__name__}"
        ) from None


def _own(outputs, samples):
    outputs = np.asarray(outputs)
    if outputs.ndim != 1 or not np.issubdtype(outputs.dtype, np.integer):
        raise TypeError(
            "an array as `outputs` must hold one integer index a sample, of "
            f"shape (n,). Received: dtype {outputs.dtype}, shape "
            f"{outputs.shape}. (A list names the same outputs for every "
            "sample.)"
        )
    if samples is not None and len(outputs) != samples:
        raise ValueError(
            "an array as `outputs` must hold one index for each of the "
            f"{samples} samples. Received: {len(outputs)}. (A list names the "
            "same outputs for every sample.)"
        )
    return outputs
