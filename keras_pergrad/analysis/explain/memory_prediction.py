"""The peak memory of a step: predicted for a CPU, measured on a GPU."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.analysis.explain.gpu_memory import (
    bytes_in_use,
    cuda_device,
    peak_rise,
)
from keras_pergrad.analysis.explain.peak_walk import steps_of
from keras_pergrad.analysis.explain.step_memory import bytes_of
from keras_pergrad.common.free_memory import as_text
from keras_pergrad.keras_internals.optimised_graphs import optimised

# Of traced functions, measured on ten models of 263 to 4,168 ops.
_GRAPH, _GRAPH_OP = 15_000_000, 33_000


@dataclasses.dataclass(frozen=True)
class MemoryPrediction:
    """The peak memory of training steps, in bytes.

    Where TensorFlow sees a CUDA GPU, a step on zeros is run there, compiled by
    XLA if training would be, and TensorFlow's own counter of the GPU's memory
    is read; weights, seeds and the optimizer get their values back. Else the
    peak is predicted for the CPU, without XLA, and nothing runs: it is the
    most that the process has resident during its first steps. `rise` is how
    far the peak is above what is held before the first step, with the model
    and the data there.

    On the CPU, of ten models, rises of 90 to 1,800 MB, most predictions were
    within 15 % of what was measured; with a large embedding 22 % too large, in
    microbatches without clipping too small: of a convolutional net by 16 %, of
    an LSTM by 36 %. Memory of the pool that a model filled by running before
    is used again, and not taken off.

    Attributes:
        batch_size: the number of samples.
        mode: the gradient mode, as it prints.
        tensors: what the step's tensors take, with the gaps between them in
            TensorFlow's pool of memory, two batches, constants, and the
            scratch memory of matrix products; on a GPU all that was measured.
        graph: what the traced and optimised function takes, by its ops; 0 on
            a GPU.
        slots: the optimizer's variables, where it has not made them yet.
        process: what the process has resident now, or holds of the GPU's
            memory; None: the system does not say (not Linux).
        largest: (bytes, op) of the largest tensors at the peak.
        unknown: names of loops whose number of turns is not known; one is
            counted.
        device: the GPU that it was measured on; None: predicted for the CPU.
    """

    batch_size: int
    mode: str
    tensors: int
    graph: int
    slots: int
    process: int | None
    largest: tuple[tuple[int, str], ...] = ()
    unknown: tuple[str, ...] = ()
    device: str | None = None

    @property
    def rise(self) -> int:
        """The peak, less what the process has before the first step."""
        return self.tensors + self.graph + self.slots

    @property
    def peak(self) -> int:
        """The peak of the process."""
        return self.rise + (self.process or 0)

    def __str__(self):
        slots = f", {as_text(self.slots)} optimizer" if self.slots else ""
        if self.device is not None:
            return (
                f"Peak of a step of {self.batch_size} samples, {self.mode}, "
                f"measured on {self.device}: {as_text(self.rise)} above what "
                f"it holds ({as_text(self.tensors)} step{slots}); with what "
                f"it holds now: {as_text(self.peak)}"
            )
        total = ""
        if self.process is not None:
            total = f"; with what the process has now: {as_text(self.peak)}"
        doubt = ""
        if self.unknown:
            doubt = f"; at least: turns of {self.unknown[0]} are not known"
        return (
            f"Peak of a step of {self.batch_size} samples, {self.mode}: "
            f"{as_text(self.rise)} above the process ({as_text(self.tensors)} "
            f"tensors, {as_text(self.graph)} graph{slots}){total}{doubt}"
        )

    # A prompt shows this.
    __repr__ = __str__


def predicted(step: Any, mode: Any, model: Any, n: int, process: Any = None):
    """Return the `MemoryPrediction` of `n` samples, by a `StepMemory`.

    `process`: what `bytes_in_use` gave before the `StepMemory` was made; None:
    what it gives now.
    """
    process = bytes_in_use() if process is None else process
    device = cuda_device()
    if device is not None:
        rise = peak_rise(device, step, mode, model, n)
        measured = rise, 0, step.slots, process
        return MemoryPrediction(n, repr(mode), *measured, device=device)
    concrete = step.trace(mode, n)
    ops = _count(concrete.graph)
    batch, _ = concrete.structured_input_signature
    tensors, peak, unknown = steps_of(
        optimised(concrete),
        n,
        [bytes_of(v) for v in model.weights],
        [bytes_of(spec) for spec in _flat(batch)],
    )
    largest = tuple(sorted(peak.held, reverse=True)[:5])
    return MemoryPrediction(
        n,
        repr(mode),
        tensors,
        _GRAPH + _GRAPH_OP * ops,
        step.slots,
        process,
        largest,
        unknown,
    )


def _count(graph):
    """Return the number of ops of a graph and of the functions it calls."""
    nested = graph.as_graph_def().library.function
    return len(graph.get_operations()) + sum(len(f.node_def) for f in nested)


def _flat(batch):
    return [t for t in tf.nest.flatten(batch) if t is not None]
