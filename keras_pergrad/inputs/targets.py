"""The model outputs that are differentiated."""

import math
import operator

import numpy as np
import tensorflow as tf

from keras_pergrad.common.names import did_you_mean


class Selection:
    """What is differentiated of each of a model's outputs.

    Attributes:
        positions: which of the flat outputs are differentiated.
        targets: the `Targets` of each of these.
    """

    def __init__(self, model, outputs, predicted, *, samples):
        flat_outputs = tf.nest.flatten(predicted)
        names = _names(model, predicted, len(flat_outputs))
        self._structure, self._keys = predicted, None
        self.positions = list(range(len(flat_outputs)))
        choices = [outputs] * len(flat_outputs)
        if isinstance(outputs, dict):
            _require_known(model, outputs, names)
            self._keys = list(outputs)
            self.positions = [names[key] for key in outputs]
            choices = list(outputs.values())
        elif outputs is not None and len(flat_outputs) != 1:
            raise ValueError(
                f"model {model.name!r} has several outputs: {list(names)}. "
                "Expected a dict that says what to differentiate of which, "
                f"such as outputs={{{next(iter(names))!r}: 0}}; None as a "
                "value stands for all its entries. Received: "
                f"outputs={outputs_text(outputs)}"
            )
        self.targets = [
            Targets(choice, flat_outputs[k].shape, samples)
            for k, choice in zip(self.positions, choices)
        ]

    def pack(self, results):
        """Return a list of results, one a target, in the user's structure."""
        if self._keys is not None:
            return dict(zip(self._keys, results))
        return tf.nest.pack_sequence_as(self._structure, results)


def _names(model, predicted, count):
    """Return the names of outputs, and their places among the flat ones."""
    positions = list(range(count))
    if isinstance(predicted, dict):
        return tf.nest.pack_sequence_as(predicted, positions)
    names = getattr(model, "output_names", None) or ()
    return dict(zip(names if len(names) == count else positions, positions))


def _require_known(model, outputs, names):
    unknown = [key for key in outputs if key not in names]
    if unknown or not outputs:
        raise ValueError(
            f"`outputs` must name outputs of model {model.name!r}: "
            f"{list(names)}. Received: {list(outputs)}"
        )


class Targets:
    """The outputs to differentiate, checked against the model's output.

    Attributes:
        is_per_sample: whether each sample has an output of its own.
        indices: of the outputs; if they are the samples' own, one a sample.
        is_single: whether one index was given, not a list.
        shape: the axes that the outputs add to a result, after the sample's.
    """

    def __init__(self, outputs, output_shape, samples):
        shape = tuple(output_shape)
        output_count = None if None in shape[1:] else math.prod(shape[1:])
        self.is_per_sample, self.is_single, self.shape = False, False, ()
        if outputs is None:
            if output_count is None:
                raise ValueError(
                    f"the model's output of shape {shape} has an axis of "
                    "unknown length, so it has no Jacobian. Choose outputs by "
                    "their indices."
                )
            self.indices: range | list | np.ndarray = range(output_count)
            self.shape = shape[1:]
            return
        if isinstance(outputs, (list, tuple)):
            self.indices = [_index(i) for i in outputs]
            self.shape = (len(self.indices),)
            if not self.indices:
                raise ValueError(
                    "`outputs` must name at least one output. Received: []"
                )
        elif np.ndim(outputs) == 0:
            self.is_single, self.indices = True, [_index(outputs)]
        else:
            self.is_per_sample = True
            self.indices = _sample_indices(outputs, samples)
        low, high = int(np.min(self.indices)), int(np.max(self.indices))
        if output_count is not None and (low < 0 or high >= output_count):
            raise ValueError(
                f"`outputs` must be from 0 to {output_count - 1}: the model's "
                f"output has shape {shape}. "
                f"Received: {low if low < 0 else high}"
            )

    def chunk_indices(self, start, size):
        """Return the indices of `size` samples, if there are indices."""
        if not self.is_per_sample:
            return np.zeros([0], np.int32)
        indices = np.asarray(self.indices[start : start + size], np.int32)
        # A slice beyond the end is shorter, without an error.
        if len(indices) < size:
            raise ValueError(
                f"`outputs` holds {len(self.indices)} indices, but x has more "
                "samples. Give one for each."
            )
        return indices

    def check_end(self, samples):
        """Refuse indices that are left over after the last sample."""
        if self.is_per_sample and len(self.indices) > samples:
            raise ValueError(
                f"`outputs` holds {len(self.indices)} indices, but x has only "
                f"{samples} samples. Give one for each."
            )


def outputs_text(outputs):
    """Return `outputs` as an error shows them: an array by its shape."""
    if isinstance(outputs, np.ndarray) or tf.is_tensor(outputs):
        return f"an array of shape {tuple(outputs.shape)}"
    return repr(outputs)


def _index(value):
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value.numpy() if tf.is_tensor(value) else value)
    except TypeError:
        raise TypeError(
            '`outputs` must be None (all), "loss", an index, a list of '
            "indices, an integer array with one index a sample, or a dict of "
            f"these by output. Received: {value!r} of type "
            f"{type(value).__name__}.{did_you_mean(value, ['loss'])}"
        ) from None


def _sample_indices(outputs, samples):
    outputs = np.asarray(outputs)
    if outputs.ndim != 1 or not np.issubdtype(outputs.dtype, np.integer):
        raise TypeError(
            "an array as `outputs` must hold one integer index a sample, of "
            f"shape (n,). Received: dtype {outputs.dtype}, shape "
            f"{outputs.shape}. (A list names the same outputs for every "
            "sample; of one-hot classes pass classes.argmax(-1).)"
        )
    if samples is not None and len(outputs) != samples:
        raise ValueError(
            "an array as `outputs` must hold one index for each of the "
            f"{samples} samples. Received: {len(outputs)}. (A list names the "
            "same outputs for every sample.)"
        )
    return outputs
