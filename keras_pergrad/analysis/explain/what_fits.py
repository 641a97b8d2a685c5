"""The largest batch, or microbatch, whose step fits into some memory."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.analysis.explain.batch_specs import build, specs
from keras_pergrad.analysis.explain.gpu_memory import bytes_in_use
from keras_pergrad.analysis.explain.memory_prediction import (
    MemoryPrediction,
    predicted,
)
from keras_pergrad.analysis.explain.step_memory import StepMemory
from keras_pergrad.clipping import ClippedMean
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.free_memory import as_text
from keras_pergrad.common.memory_sizes import bytes_in
from keras_pergrad.keras_internals.inspection_checks import (
    require_any_batch_size,
    require_model,
)
from keras_pergrad.modes import Accumulated, Vectorized
from keras_pergrad.modes.base import gradient_modes

# Far below the error of the prediction: this share of the memory that one
# sample leaves, or a size exact to one part in 32, is near enough.
_FULL, _PRECISION = 0.97, 32


@dataclasses.dataclass(frozen=True)
class MemoryFit:
    """What `what_fits` found; prints as one line.

    Attributes:
        size: the largest batch, or microbatch, that fits; None: not one sample
            does.
        microbatch: whether `size` is that of a microbatch.
        memory: the bytes that were given.
        prediction: the `MemoryPrediction` for that size; where nothing fits,
            for one sample.
        at_most: the size up to which was looked.
    """

    size: int | None
    microbatch: bool
    memory: int
    prediction: MemoryPrediction
    at_most: int

    @property
    def limit(self) -> str:
        """What limits the size."""
        found = self.prediction
        if self.size == self.at_most:
            return f"larger ones were not tried (at_most={self.at_most})"
        parts = {
            "the tensors of the step": found.tensors,
            "the traced graph": found.graph,
            "the optimizer's variables": found.slots,
            "what the process has already": found.process or 0,
        }
        if self.size is not None:
            return "the tensors of the step"
        return max(parts, key=parts.__getitem__)

    def __str__(self):
        peak, memory = as_text(self.prediction.peak), as_text(self.memory)
        what = "microbatch" if self.microbatch else "batch"
        if self.size is None:
            return (
                f"Nothing fits into {memory}: a {what} of one sample has a "
                f"predicted peak of {peak}, mostly {self.limit}. "
                f"{self._way_out()}"
            )
        line = (
            f"A {what} of {self.size} fits into {memory}: predicted peak "
            f"{peak}, limited by {self.limit}."
        )
        if self.microbatch:
            return line
        return (
            f"{line} Larger batches: Accumulated(microbatch_size={self.size})."
        )

    def _way_out(self):
        if "tensors" not in self.limit:
            return (
                "Microbatches do not change this: give more memory, or start "
                "from a smaller process, model or optimizer."
            )
        return (
            "Microbatches, Accumulated(microbatch_size=1), need as much: "
            "give more memory, shorter samples or a smaller model."
        )

    # A prompt shows this.
    __repr__ = __str__


def what_fits(
    model: keras.Model,
    memory: str | int,
    mode: Any = None,
    *,
    x: Any = None,
    y: Any = None,
    batch_size: int = 1024,
    at_most: int = 65_536,
) -> MemoryFit:
    """Find the largest batch, or microbatch, whose step fits into memory.

    By bisection on a prediction: steps are traced for several sizes and
    walked through, and none is run. The peak is that of the whole process:
    what it has now, and the `rise` of a `MemoryPrediction`, which says what it
    covers. The prediction is for the CPU, without XLA.

    Where TensorFlow sees a CUDA GPU, each size is run on zeros and measured
    there, as training would be compiled; a size that does not fit into the
    GPU is too large, whatever `memory` is.

    Args:
        model: a `keras.Model`, compiled or not: without a loss it is the mean
            squared error, without an optimizer SGD. The slots of an optimizer
            that has none yet are made once, and freed.
        memory: what the process may take, or on a GPU all that it holds
            there: "8GB", "8GiB", "500MB" or bytes.
        mode: a gradient mode, by name or as an object; "accumulated" asks for
            the largest microbatch. Default: what the model was compiled with,
            where that looks at samples or takes microbatches, else
            `Vectorized(ClippedMean(1.0))`.
        x: a batch, or one sample, whose shapes and dtypes are those of
            training; needed where the model does not know its inputs.
        y: likewise the targets; needed where they cannot be told from the
            loss and the outputs.
        batch_size: the number of samples that microbatches are taken from.
        at_most: the size beyond which none is tried.

    Returns:
        A `MemoryFit`, which prints as one line. Its `size` is a number of
        samples: the largest that fits, to about 3 %; or None.

    Raises:
        TypeError: `model` is no `keras.Model`.
        ValueError: `memory` is no amount, the mode is unknown, a size is not
            positive, the model has a `train_step` of its own, or the mode
            refuses the model.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> found = kpg.what_fits(model, memory="1TB", mode="batch", at_most=64)
    >>> found.size, found.prediction.batch_size
    (64, 64)
    """
    require_model(model)
    require_any_batch_size(model, "what_fits()", "tries batches of other sizes")
    memory = bytes_in("memory", memory)
    at_most = positive_integer("at_most", at_most)
    batch_size = positive_integer("batch_size", batch_size)
    mode = gradient_modes.get(mode_of(model) if mode is None else mode)
    microbatch = isinstance(mode, Accumulated)
    if microbatch:
        at_most = min(at_most, batch_size)
    build(model, specs(model, 1, x))
    process = bytes_in_use()
    step = StepMemory(model, lambda n: specs(model, n, x), y)

    def of_size(size):
        if not microbatch:
            return predicted(step, mode, model, size, process)
        own = Accumulated(mode.steps, size, mode.inner, mode.tail)
        return predicted(step, own, model, batch_size, process)

    size, found = _largest(of_size, memory, at_most)
    return MemoryFit(size, microbatch, memory, found, at_most)


def mode_of(model):
    """Return the mode that a model's memory is predicted for."""
    own = getattr(model, "_gradient_mode", None)
    if own is not None and (own.per_sample or isinstance(own, Accumulated)):
        return own
    return Vectorized(ClippedMean(1.0))


def _largest(of_size, memory, at_most):
    """Return the largest size that fits, or None, and its prediction."""
    fits, low = 1, of_size(1)
    if low.peak > memory:
        return None, low
    too_large, high, growth = at_most + 1, None, 64
    full = low.peak + _FULL * (memory - low.peak)
    while low.peak < full and too_large - fits > 1 + fits // _PRECISION:
        size = (fits + too_large) // 2
        if high is None:
            size = min(fits * growth, at_most)
        elif (too_large - fits) > 4:
            # Where a line through both would reach the limit.
            share = (memory - low.peak) / (high.peak - low.peak)
            size = fits + int(share * (too_large - fits))
            size -= size // (2 * _PRECISION)
            edge = max(1, (too_large - fits) // 16)
            size = min(max(size, fits + edge), too_large - edge)
        try:
            tried = of_size(size)
        except tf.errors.ResourceExhaustedError:  # of a GPU that is smaller
            tried = dataclasses.replace(
                low, tensors=max(memory, low.tensors) * size // fits
            )
        if tried.peak <= memory:
            fits, low = size, tried
        else:
            too_large, high = size, tried
    return fits, low
