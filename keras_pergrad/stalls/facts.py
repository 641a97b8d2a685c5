"""The facts about an epoch and its data, for advice and verdicts."""

import dataclasses
import math
import os

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batch_marks import source_of_draws
from keras_pergrad.keras_internals.data.sources import is_grain
from keras_pergrad.stalls.running import RunningPipeline
from keras_pergrad.stalls.stages import Stage, match_stages, written_stages

PASS_THROUGH = ("Repeat", "Take", "Skip", "AssertCardinality")
RUN_AHEAD_STAGES = (
    "MapAndBatch",
    "ParallelMap",
    "ParallelMapAndBatch",
    "ParallelInterleave",
)


@dataclasses.dataclass
class Facts:
    """The facts that rules and verdicts may look at.

    Attributes:
        kind: dataset, pydataset, generator, dataloader (torch), grain,
            arrays, drawn (by this package, whose stages nobody can change)
            or unknown.
        data: What the user passed.
        wait_ms, step_ms: Per batch.
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
        selected = sum(s.seconds for s in self.running if s.name in names)
        return selected / total if total else None

    def running_of(self, stage):
        """Return the `RunningStage` that a written stage became, or None."""
        place, running = self.stages.index(stage), self.running or ()
        pairs = zip(running, match_stages(self.stages, running))
        return next(
            (running_stage for running_stage, parts in pairs if place in parts),
            None,
        )

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
        elements = running.elements * max(running.ratio, 1.0)
        return 1e3 * running.seconds / elements

    @property
    def overlaps(self):
        """Whether batches are made while the model computes."""
        if self._prefetches:
            return True
        # A parallel stage that does the work runs ahead by itself, and so
        # does a map that TensorFlow has fused with its batch.
        return (self.share(*RUN_AHEAD_STAGES) or 0.0) > 0.5

    @property
    def _prefetches(self):
        if _ends_in_prefetch(stage.kind for stage in self.stages):
            return True
        if self.running:
            return _ends_in_prefetch(stage.name for stage in self.running)
        if self.kind == "dataset":
            # TensorFlow adds a prefetch, unless one of these options is off.
            options = self.data.options()
            is_off = options.autotune.enabled is False
            injects = options.experimental_optimization.inject_prefetch
            return not is_off and injects is not False
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
        if not any(passing in name for passing in PASS_THROUGH):
            return name.startswith("Prefetch")
    return False


def kind_of(data):
    """Return which of the kinds of `Facts` the data is."""
    if source_of_draws(data) is not None:
        return "drawn"
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


def collect_facts(data, running, wait_ms, step_ms, **times):
    """Return the `Facts` of data, its `RunningPipeline` and its times."""
    kind = kind_of(data)
    written = written_stages(data) if kind == "dataset" else []
    return Facts(
        kind, data, wait_ms, step_ms, stages=written, running=running, **times
    )


def facts_of(report, data, running=None, passes=None):
    """Return the `Facts` of an epoch: its report, data, running pipeline."""
    return collect_facts(
        data,
        running,
        report.wait_ms or 0.0,
        report.step_ms or 0.0,
        first_batch_ms=1e3 * (report.first_batch_s or 0.0),
        passes=passes,
        steps=report.steps,
        cpu_ms=report.cpu_ms,
        copy_ms=report.copy_ms,
    )
