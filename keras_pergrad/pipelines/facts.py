"""What is known about the data when advice is asked for."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.pipelines.anatomy import Stage, stages
from keras_pergrad.pipelines.tf_model import running_stages

PASS_ON = ("Repeat", "Take", "Skip", "AssertCardinality")
RUN_AHEAD = ("ParallelMap", "ParallelMapAndBatch", "ParallelInterleave")


@dataclasses.dataclass
class Facts:
    """Attributes:
    kind: dataset, pydataset, generator, dataloader, arrays or unknown.
    data: What the user passed.
    wait_ms, step_ms: Per batch.
    burst_ms: Mean wait minus median wait: what single slow batches cost.
    first_batch_ms: From the start of the epoch to the first batch.
    passes: How many epochs there are, from this one on; None if unknown.
    steps: Batches of this epoch; None if unknown.
    stages: As written, last first; for datasets.
    running: As they run, with seconds of work; None if unknown.
    """

    kind: str
    data: object
    wait_ms: float
    step_ms: float
    burst_ms: float = 0.0
    first_batch_ms: float = 0.0
    passes: int | None = None
    steps: int | None = None
    stages: list[Stage] = dataclasses.field(default_factory=list)
    running: list | None = None

    def share(self, *names):
        """Share of the pipeline's work done in stages of these names."""
        if not self.running:
            return None
        total = sum(seconds for _, seconds in self.running)
        named = sum(
            seconds
            for name, seconds in self.running
            if name.split("[")[0].removesuffix("V2") in names
        )
        return named / total if total else None

    @property
    def overlaps(self):
        """Whether batches are made while the model computes."""
        if self._prefetches:
            return True
        # A parallel stage that does the work runs ahead by itself.
        ahead = any(stage.kind in RUN_AHEAD for stage in self.stages)
        return ahead and (self.share(*RUN_AHEAD, "MapAndBatch") or 0.0) > 0.5

    @property
    def _prefetches(self):
        if _ends_in_prefetch(stage.kind for stage in self.stages):
            return True
        if self.running:
            return _ends_in_prefetch(name for name, _ in self.running)
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


def _ends_in_prefetch(names):
    """Also behind stages that only pass batches on."""
    for name in names:
        if not any(passing in name for passing in PASS_ON):
            return name.startswith("Prefetch")
    return False


def kind_of(data):
    """Which of the kinds of `Facts` the data is."""
    if isinstance(data, tf.data.Dataset):
        return "dataset"
    if isinstance(data, keras.utils.PyDataset):
        return "pydataset"
    if hasattr(data, "gi_frame"):
        return "generator"
    if type(data).__name__ == "DataLoader":
        return "dataloader"
    parts = tf.nest.flatten(data)
    if parts and all(isinstance(p, (np.ndarray, tf.Tensor)) for p in parts):
        return "arrays"
    return "unknown"


def gather(data, iterator, wait_ms, step_ms, **others):
    """Collects the `Facts`; nothing is iterated."""
    kind = kind_of(data)
    return Facts(
        kind=kind,
        data=data,
        wait_ms=wait_ms,
        step_ms=step_ms,
        stages=stages(data) if kind == "dataset" else [],
        running=None if iterator is None else running_stages(iterator),
        **others,
    )
