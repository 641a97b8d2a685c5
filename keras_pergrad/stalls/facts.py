"""The facts about an epoch and its data, for advice and the verdict."""

import dataclasses
import functools
import math
import os

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.data_batches import source_of_draws
from keras_pergrad.keras_internals.data.sources import is_grain
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.running import RunningPipeline
from keras_pergrad.stalls.stages import match_stages, stage_rows, written_stages
from keras_pergrad.stalls.verdicts import fit_verdict

PASS_THROUGH = ("Repeat", "Take", "Skip", "AssertCardinality")
RUN_AHEAD_STAGES = (
    "MapAndBatch",
    "ParallelMap",
    "ParallelMapAndBatch",
    "ParallelInterleave",
)


@dataclasses.dataclass
class Facts:
    """The facts about an epoch that advice and the verdict follow from.

    Attributes:
        report: The `StallReport` of the epoch.
        data: What the user passed.
        running: The pipeline's stages as they run; None if unknown.
        passes: How many epochs there are, from this one on; None if unknown.
    """

    report: StallReport
    data: object
    running: RunningPipeline | None = None
    passes: int | None = None

    @functools.cached_property
    def kind(self):
        """What `kind_of` says of the data."""
        return kind_of(self.data)

    @functools.cached_property
    def stages(self):
        """The stages as written, last first; of a `tf.data.Dataset`."""
        return written_stages(self.data) if self.kind == "dataset" else []

    @functools.cached_property
    def verdict(self):
        """The `Verdict` on the epoch."""
        return fit_verdict(self.report, self.overlaps)

    @functools.cached_property
    def rows(self):
        """List of `StageRow` of what runs, the source first."""
        return stage_rows(
            self.data,
            self.kind,
            written=self.stages,
            running=self.running,
            is_bottleneck=self.verdict.is_bottleneck,
        )

    @property
    def wait_ms(self):
        return self.report.wait_ms or 0.0

    @property
    def step_ms(self):
        return self.report.step_ms or 0.0

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
        return next((stage for stage, parts in pairs if place in parts), None)

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
    def surely_waits(self):
        """Whether the loading mostly waits (disk, network), on any machine."""
        # All that this process computes, the step included, is less than half
        # of what the step waits; also if it had got a core whenever it was
        # ready to compute.
        cpu, ready = self.report.cpu_ms, self.report.ready_ms or 0.0
        return cpu is not None and cpu + ready < 0.5 * self.wait_ms

    @property
    def surely_computes(self):
        """Whether loading computes, even if the step took all cores."""
        # Time without a core does not count: threads that only wake up have it
        # on a busy machine, too.
        cpu = self.report.cpu_ms
        if cpu is None:
            return False
        return cpu - self.step_ms * self.cores > 0.5 * self.wait_ms

    @property
    def may_wait(self):
        """Whether the loading waits, or makes a bottleneck and may."""
        # With a short wait the step alone decides how much is computed.
        is_open = not self.surely_computes and self.verdict.is_bottleneck
        return self.surely_waits or is_open

    @property
    def may_compute(self):
        """Whether the loading computes, or makes a bottleneck and may."""
        is_open = not self.surely_waits and self.verdict.is_bottleneck
        return self.surely_computes or is_open

    @property
    def cores(self):
        """The number of cores of this machine."""
        return cores()

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
    """Return the kind of what the user passed.

    dataset, pydataset, generator, dataloader (torch), grain, arrays, drawn (by
    this package, whose stages nobody can change) or unknown.
    """
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
