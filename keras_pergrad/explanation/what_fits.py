"""The largest batch, or microbatch, whose step fits into some memory."""

import dataclasses
import functools
import math
from typing import Any

import keras

from keras_pergrad.common.arguments import (
    named_arguments,
    parse_bytes,
    positive_integer,
)
from keras_pergrad.common.batches import require_arrays
from keras_pergrad.common.data_batches import common_length
from keras_pergrad.common.machine import as_text
from keras_pergrad.explanation.step_memory import (
    SavedModel,
    StepMemory,
    build_on_zeros,
    input_specs,
    mode_of,
    too_large,
)
from keras_pergrad.functions.data_passes import require_outside_functions
from keras_pergrad.modes import Accumulated
from keras_pergrad.modes.base import gradient_modes
from keras_pergrad.modes.inspection import (
    require_any_batch_size,
    require_model,
    require_no_data_set,
)

# Peaks of processes differ by some percent, so a size that leaves this share
# of the memory, or exact to one part in 16, is near enough.
_FULL_SHARE, _TARGET_SHARE, _PRECISION = 0.95, 0.97, 16
_MAX_GROWTH = 64  # at most, from one size to the next


@dataclasses.dataclass(frozen=True)
class MemoryFit:
    """What `what_fits` found; prints as one line.

    Attributes:
        size: the largest batch, or microbatch, that fits; None: not one sample
            does.
        microbatch: whether `size` is that of a microbatch.
        memory: the bytes that were given.
        step: the `StepMemory` for that size; where nothing fits, for one
            sample.
        at_most: the largest size that was considered.
        limit: what limits the size, such as "the memory of the step".
    """

    size: int | None
    microbatch: bool
    memory: int
    step: StepMemory
    at_most: int
    limit: str

    def __str__(self) -> str:
        peak, memory = as_text(self.step.peak), as_text(self.memory)
        what = "microbatch" if self.microbatch else "batch"
        if self.size is None:
            return (
                f"Nothing fits into {memory}: a {what} of one sample has a "
                f"peak of {peak}, mostly {self.limit}. Give more memory, or "
                "start from a smaller process, model or optimizer."
            )
        line = (
            f"A {what} of {self.size} fits into {memory}: peak {peak}, "
            f"limited by {self.limit}."
        )
        if self.microbatch:
            return line
        return (
            f"{line} Larger batches: Accumulated(microbatch_size={self.size})."
        )

    # A prompt shows this.
    __repr__ = __str__


@named_arguments
def what_fits(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    memory: str | int,
    gradient_mode: Any = None,
    batch_size: int = 1024,
    at_most: int = 65_536,
) -> MemoryFit:
    """Find the largest batch, or microbatch, whose step fits into memory.

    It tries sizes: a copy of the model runs three steps of each, and their
    peak is measured, as in `StepMemory`. On a CPU each size takes some
    seconds, since it runs in a process of its own, which ends when it takes
    more than there is. The peak is that of this process: what it holds now,
    and the rise of such steps. The result is exact to about 6 %.

    Args:
        model: a `keras.Model` that can be saved and loaded. If it is not
            compiled, it is trained by SGD on the mean squared error.
        x: a batch, or one sample, whose rows are repeated; needed where the
            model does not know its inputs. Default: zeros.
        y: the targets of these rows; needed if the loss and the outputs do
            not determine them. Default: zeros.
        memory: what the process may take, or on a GPU all that it holds
            there: "8GB", "8GiB", "500MB" or bytes. More than is free on this
            machine is not tried, and `limit` says so.
        gradient_mode: by name or as an object; "accumulated" asks for the
            largest microbatch. Default: what the model was compiled with, or
            `Vectorized(ClippedMean(1.0))` instead of "batch".
        batch_size: the number of samples that microbatches are taken from.
        at_most: the largest size that is tried.

    Returns:
        A `MemoryFit`, which prints as one line. Its `size` is a number of
        samples, or None.

    Raises:
        TypeError: `model` is no `keras.Model`.
        ValueError: `memory` is no amount, the mode is unknown, a size is not
            positive, or the model cannot be saved, loaded or trained in the
            mode.
        MemoryError: one sample needs more than is free on this machine.

    Example:

    >>> import keras
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> found = kpg.diagnose.what_fits(
    ...     model, memory="100GB", gradient_mode="batch", at_most=1
    ... )
    >>> found.size, found.step.batch_size
    (1, 1)
    """
    require_outside_functions()
    require_model(model)
    if x is not None:
        require_no_data_set(x)
        require_arrays(x, y)
        common_length((x, y, None))
    require_any_batch_size(model, "what_fits()", "tries batches of other sizes")
    memory = parse_bytes("memory", memory)
    at_most = positive_integer("at_most", at_most)
    batch_size = positive_integer("batch_size", batch_size)
    mode = gradient_modes.get(
        mode_of(model) if gradient_mode is None else gradient_mode
    )
    microbatch = isinstance(mode, Accumulated)
    largest_limit = f"at_most={at_most}, beyond which none was tried"
    if microbatch and batch_size <= at_most:
        at_most = batch_size
        largest_limit = f"batch_size={batch_size}, which is all samples"
    build_on_zeros(model, input_specs(model, 1, x))
    rows = batch_size if microbatch else at_most
    result = functools.partial(
        MemoryFit, microbatch=microbatch, memory=memory, at_most=at_most
    )
    with SavedModel(model, x, y, rows=rows) as saved:

        def measure_size(size, limit=None):
            if not microbatch:
                return saved.step(mode, size, limit)
            resized_mode = Accumulated(
                mode.steps, size, mode.inner, tail=mode.tail
            )
            return saved.step(resized_mode, batch_size, limit)

        available = memory - (saved.process or 0)
        single_step = measure_size(1)
        if single_step is None:
            raise too_large(model, batch_size if microbatch else 1)
        if single_step.rise > available:
            process_is_larger = (saved.process or 0) > single_step.rise
            limit = (
                "what the process holds" if process_is_larger else "the step"
            )
            return result(None, step=single_step, limit=limit)
        limit = "the memory of the step"
        if saved.free is not None and saved.free < available:
            available = saved.free
            limit = f"what is free on this machine, {as_text(available)}"
        size, step = _largest(
            measure_size, single_step, available, at_most=at_most
        )
        if size == at_most:
            limit = largest_limit
    return result(size, step=step, limit=limit)


def _largest(measure_size, single_step, available, *, at_most):
    """Return the largest size that fits, and its memory."""
    largest_size, largest_step, smallest_misfit = 1, single_step, at_most + 1
    while (
        largest_step.rise < _FULL_SHARE * available
        and smallest_misfit - largest_size > 1 + largest_size // _PRECISION
    ):
        # Sizes are halved by their ratio, as they may range over magnitudes.
        size = max(largest_size + 1, math.isqrt(largest_size * smallest_misfit))
        if smallest_misfit > at_most:
            size = min(_MAX_GROWTH * largest_size, at_most)
            if largest_step.rise > single_step.rise:
                # Where a line through both would nearly reach the limit.
                size_ratio = (_TARGET_SHARE * available - largest_step.rise) / (
                    largest_step.rise - single_step.rise
                )
                increase = max(
                    size_ratio * (largest_size - 1),
                    1 + largest_size // _PRECISION,
                )
                size = min(size, largest_size + int(increase))
        tried_step = measure_size(size, available)
        if tried_step is None:
            smallest_misfit = size
        else:
            largest_size, largest_step = size, tried_step
    return largest_size, largest_step
