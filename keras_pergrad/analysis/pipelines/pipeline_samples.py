"""Observations of a running pipeline while its data lasts.

When the data has ended, all buffers are empty, and TensorFlow has forgotten
the pipelines that a stage made of its elements.
"""

import dataclasses

from keras_pergrad.analysis.pipelines.tfdata_model import (
    RunningPipeline,
    running_pipeline,
)

EVERY = 4  # after 2, 8, 32, 128 ... calls: an epoch hardly feels it


class PipelineSamples:
    """A few samples of one epoch's pipeline, and their summary."""

    def __init__(self):
        self._calls = 0
        self._next = 2
        self._samples = []

    def tick(self, find_iterator):
        """Count a call of the train function; sample the pipeline at some."""
        self._calls += 1
        if self._calls == self._next:
            self._next *= EVERY
            sample = running_pipeline(find_iterator())
            if sample is not None:
                self._samples.append(sample)

    def summary(self, iterator):
        """Return it as it ran recently with its fullest buffers, or None."""
        last = running_pipeline(iterator)
        seen = [*self._samples, last] if last is not None else self._samples
        if not seen:
            return None
        # Stages whose data has ended are gone: use the last full sample.
        whole = max(reversed(seen), key=len)
        stages = [
            self._joined(stage, [s[at] for s in seen if at < len(s)])
            for at, stage in enumerate(whole)
        ]
        return RunningPipeline(stages, whole.cpu_budget, whole.ram_budget)

    @staticmethod
    def _joined(stage, samples):
        same = [s for s in samples if s.name == stage.name]
        nested = [s.nested_s for s in same if s.nested_s]
        each = sum(nested) / len(nested) if nested else 0.0
        return dataclasses.replace(
            stage,
            buffered=max(s.buffered for s in same),
            nested_s=each,
            seconds=stage.own_s + each * (stage.elements or 0),
        )
