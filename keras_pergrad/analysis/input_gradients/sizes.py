"""The memory that gradients of inputs take, estimated beforehand."""

import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.chunk import OVER_SAMPLES
from keras_pergrad.common.free_memory import as_text, free_bytes
from keras_pergrad.keras_internals.model_parts import layers_of

#: A chunk's gradients are held as computed, stacked, transposed and copied.
_COPIES = 4
#: The parts of the free memory for the result and for a chunk.
_OF_RESULT, _OF_CHUNK = 0.7, 0.2


class Sizes:
    """The sizes of a result, `held` in memory or not, and of its chunks."""

    def __init__(self, model, x, targets, reduce, held):
        inner = [_inner_shape(model, t) for t in tf.nest.flatten(x)]
        item = np.dtype(keras.config.floatx()).itemsize
        self._shapes = [(*t.shape, *size) for t in targets for size in inner]
        self._of_sample = sum(map(math.prod, self._shapes)) * item
        self._result_of_sample = self._of_sample
        if reduce == "norm":
            outputs = sum(math.prod(t.shape) for t in targets)
            self._result_of_sample = outputs * len(inner) * item
        if reduce in OVER_SAMPLES or not held:
            self._result_of_sample = 0
        self._free = free_bytes()

    def rows(self):
        """Return how many samples a chunk may have; refuse if none fits."""
        if self._free is None:
            return None
        needed = _COPIES * self._of_sample
        if needed > self._free:
            raise ValueError(
                f"the gradients of one sample, of shape {self._shown()}, take "
                f"{as_text(needed)} while they are computed. Expected at most "
                f"{as_text(self._free)}, which is free. Choose fewer outputs "
                "at a time: `outputs=` takes a list of indices."
            )
        return max(1, int(_OF_CHUNK * self._free) // max(needed, 1))

    def check_result(self, samples):
        """Refuse a result that would not fit in memory."""
        needed = self._result_of_sample * samples
        if self._free is None or needed <= _OF_RESULT * self._free:
            return
        shape = self._shown(samples)
        raise ValueError(
            f"the gradients of {samples} samples would take {as_text(needed)} "
            f"of memory. Expected at most {as_text(_OF_RESULT * self._free)}, "
            f"of what is free. Received: a result of shape {shape}. There are "
            "three ways: `outputs=`, one or some of the outputs, or an array "
            "with one for each sample; `reduce=`, 'norm' or a mean over the "
            "samples; or `out=`, a file: numpy.lib.format.open_memmap(path, "
            f"'w+', '{keras.config.floatx()}', shape)."
        )

    def _shown(self, *samples):
        shapes = [(*samples, *shape) for shape in self._shapes]
        return " and ".join(map(str, shapes))


def _inner_shape(model, tensor):
    """Return a sample's shape; of ids, that of the largest embedding."""
    shape = tuple(tensor.shape[1:])
    if tensor.dtype.is_floating:
        return shape
    kind, layers = keras.layers.Embedding, layers_of(model)
    widths = [one.output_dim for one in layers if isinstance(one, kind)]
    return (*shape, max(widths, default=1))
