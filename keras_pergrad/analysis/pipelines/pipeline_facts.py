"""Facts about the data, and the rules and advice that look at them."""

import collections.abc
import dataclasses
import math
import os

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.pipelines.grain_data import is_grain
from keras_pergrad.analysis.pipelines.stage_table import matched
from keras_pergrad.analysis.pipelines.stages import Stage, stages
from keras_pergrad.analysis.pipelines.tfdata_model import (
    RunningPipeline,
    running_pipeline,
)

PASS_ON = ("Repeat", "Take", "Skip", "AssertCardinality")
RUN_AHEAD = (
    "MapAndBatch",
    "ParallelMap",
    "ParallelMapAndBatch",
    "ParallelInterleave",
)


@dataclasses.dataclass
class Advice:
    """One cause and the code that removes it.

    Attributes:
        name: What it is called in tests and documentation.
        cause: One or two sentences.
        code: Lines that run as they stand, given the names in them.
        gain_ms: The most it can save of a batch's time, where that was
            measured; None where only trying tells.
        is_mistake: Whether training itself differs from what was meant, or one
            line undoes the purpose of another.
    """

    name: str
    cause: str
    code: str
    gain_ms: float | None
    is_mistake: bool = False


@dataclasses.dataclass
class Rule:
    """One row of a table of advice.

    Attributes:
        name: That of the `Advice`.
        when: Function of the `Facts`: None where the advice does not apply,
            else the values in the texts, and the measured `gain` if there is.
        cause, code: Texts of the `Advice`, with `{values}` in them.
        is_mistake: As in `Advice`.
        without_stall: Whether it also applies where the data comes in time.
        of_the_start: Whether it looks at how late the first batch was.
    """

    name: str
    when: collections.abc.Callable
    cause: str
    code: str
    is_mistake: bool = False
    without_stall: bool = False
    of_the_start: bool = False

    def advice(self, facts):
        """Return the `Advice` on these facts, or None."""
        values = self.when(facts)
        if values is None:
            return None
        return Advice(
            self.name,
            self.cause.format(**values),
            self.code.format(**values),
            values.get("gain"),
            self.is_mistake,
        )


@dataclasses.dataclass
class Facts:
    """The facts that rules and verdicts may look at.

    Attributes:
        kind: dataset, pydataset, generator, dataloader (torch), grain,
            arrays or unknown.
        data: What the user passed.
        wait_ms, step_ms: Per batch.
        burst_ms: Mean wait minus median wait: what single slow batches cost.
        first_batch_ms: From the start of the epoch to the first batch.
        passes: How many epochs there are, from this one on; None if unknown.
        steps: Batches of this epoch; None if unknown.
        cpu_ms: Time that this process's threads computed, per batch; None if
            unknown.
        copy_ms: Time of a batch's copy to the accelerator, in `step_ms`;
            None if unknown.
        stages: As written, last first; for datasets.
        running: As they run; None if unknown.
    """

    kind: str
    data: object
    wait_ms: float
    step_ms: float
    burst_ms: float = 0.0
    first_batch_ms: float = 0.0
    passes: int | None = None
    steps: int | None = None
    cpu_ms: float | None = None
    copy_ms: float | None = None
    stages: list[Stage] = dataclasses.field(default_factory=list)
    running: RunningPipeline | None = None

    def share(self, *names):
        """Share of the pipeline's work done in stages of these names."""
        if not self.running:
            return None
        total = sum(stage.seconds for stage in self.running)
        named = sum(s.seconds for s in self.running if s.name in names)
        return named / total if total else None

    def running_of(self, stage):
        """Return the `RunningStage` that a written stage became, or None."""
        place = self.stages.index(stage)
        pairs = zip(
            self.running or (), matched(self.stages, self.running or ())
        )
        return next((now for now, parts in pairs if place in parts), None)

    def share_of(self, stage):
        """Share of the pipeline's work done in one written stage, or 0."""
        running = self.running_of(stage)
        total = sum(other.seconds for other in self.running or ())
        return running.seconds / total if running and total else 0.0

    def element_ms(self, stage):
        """Time for one element in one written stage; None if unknown."""
        running = self.running_of(stage)
        if running is None or not running.elements:
            return None
        # A fused map and batch gives batches, and takes elements.
        taken = running.elements * max(running.ratio, 1.0)
        return 1e3 * running.seconds / taken

    @property
    def overlaps(self):
        """Whether batches are made while the model computes."""
        if self._prefetches:
            return True
        # A parallel stage that does the work runs ahead by itself, and so
        # does a map that TensorFlow has fused with its batch.
        return (self.share(*RUN_AHEAD) or 0.0) > 0.5

    @property
    def _prefetches(self):
        if _ends_in_prefetch(stage.kind for stage in self.stages):
            return True
        if self.running:
            return _ends_in_prefetch(stage.name for stage in self.running)
        if self.kind == "dataset":
            options = self.data.options()
            off = options.autotune.enabled is False
            injects = options.experimental_optimization.inject_prefetch
            return not off and injects is not False
        return self.kind != "unknown"

    @property
    def pipeline_ms(self):
        """Time the pipeline takes for a batch."""
        return self.wait_ms + (self.step_ms if self.overlaps else 0.0)

    @property
    def sleeps(self):
        """Whether the loading surely sleeps (disk, network) mostly."""
        # All that this process computes, the step included, is less than half
        # of what the step waits.
        return self.cpu_ms is not None and self.cpu_ms < 0.5 * self.wait_ms

    @property
    def computes(self):
        """Whether loading surely computes, even if the step took all cores."""
        if self.cpu_ms is None:
            return False
        return self.cpu_ms - self.step_ms * cores() > 0.5 * self.wait_ms

    @property
    def threads_to_hide(self):
        """Threads (4 to 64) that hide sleeping loads behind the step."""
        needed = 2 * math.ceil(self.pipeline_ms / max(self.step_ms, 0.1))
        return min(max(needed, 4), 64)


def cores():
    """Return the number of cores of this machine."""
    return os.cpu_count() or 1


def _ends_in_prefetch(names):
    """Whether a prefetch comes last, but for stages that pass batches on."""
    for name in names:
        if not any(passing in name for passing in PASS_ON):
            return name.startswith("Prefetch")
    return False


def kind_of(data):
    """Return which of the kinds of `Facts` the data is."""
    if isinstance(data, tf.data.Dataset):
        return "dataset"
    if isinstance(data, keras.utils.PyDataset):
        return "pydataset"
    if hasattr(data, "gi_frame"):
        return "generator"
    if is_grain(data):
        return "grain"
    if type(data).__name__ == "DataLoader":
        return "dataloader"
    parts = tf.nest.flatten(data)
    if parts and all(isinstance(p, (np.ndarray, tf.Tensor)) for p in parts):
        return "arrays"
    return "unknown"


def gather(data, running, wait_ms, step_ms, **others):
    """Collect the `Facts`, from a `RunningPipeline` or a live iterator too."""
    kind = kind_of(data)
    if running is not None and not isinstance(running, RunningPipeline):
        running = running_pipeline(running)
    written = stages(data) if kind == "dataset" else []
    return Facts(
        kind, data, wait_ms, step_ms, stages=written, running=running, **others
    )
