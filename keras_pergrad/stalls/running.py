"""tf.data's own account of where its time goes, read from a live iterator.

TensorFlow rewrites pipelines (it fuses stages and adds a prefetch), so the
stages here can differ from what was written; `written_stages` joins the two.

`tf.raw_ops.IteratorGetModelProto` gives a `ModelProto` of
tensorflow/core/framework/model.proto.
"""

import dataclasses
import statistics

import tensorflow as tf

from keras_pergrad.keras_internals.data.sources import ModelProto

PARALLELISM, BUFFER = "parallelism", "buffer_size"
SAMPLE_FACTOR = 4  # after 2, 8, 32, 128 ... calls: an epoch hardly feels it
#: Stages that make a separate pipeline of each of their elements.
NESTING = ("FlatMap", "Interleave", "ParallelInterleave")


@dataclasses.dataclass
class RunningStage:
    """One stage as it runs.

    Attributes:
        name: TensorFlow's name, without a version: MapAndBatch, Prefetch.
        seconds: Time worked so far, over the calls that work side by side,
            with the pipelines that the stage makes of its elements.
        nested_s: Time in those pipelines for one element that it gives; 0
            where there are none, or none runs at the moment.
        elements: Elements given so far; None if TensorFlow does not count.
        parallelism: Calls side by side as TensorFlow has set them, or None.
        buffer_size: Elements its buffer may hold, as set now, or None.
        buffered: Elements in its buffer now.
        autotuned: Whether TensorFlow chooses parallelism or buffer size.
        ratio: Elements it takes for one that it gives; 0 where they vary.
    """

    name: str
    seconds: float
    elements: int | None = None
    parallelism: int | None = None
    buffer_size: int | None = None
    buffered: int = 0
    autotuned: bool = False
    ratio: float = 1.0
    nested_s: float = 0.0

    @property
    def own_s(self):
        return self.seconds - self.nested_s * (self.elements or 0)


class RunningPipeline(list):
    """`RunningStage`s from the last to the source.

    Attributes:
        cpu_budget: Cores that autotuning may use, or None.
        ram_budget: Bytes that autotuning may use for buffers, or None.
    """

    def __init__(self, stages=(), cpu_budget=None, ram_budget=None):
        super().__init__(stages)
        self.cpu_budget = cpu_budget
        self.ram_budget = ram_budget


def running_pipeline(iterator):
    """Return the stages of a pipeline as they really run, or None."""
    # TensorFlow keeps no account of distributed iterators, and none where
    # autotuning is off.
    if not isinstance(iterator, tf.data.Iterator):
        return None
    resource = tf.nest.flatten(iterator, expand_composites=True)[0]
    try:
        serialized = tf.raw_ops.IteratorGetModelProto(iterator=resource).numpy()
    except (tf.errors.OpError, AttributeError):
        return None
    model = ModelProto.FromString(serialized)
    stages = _collect_stages(model, model.output)
    if not stages:
        return None
    budget = model.optimization_params
    cores, memory = budget.cpu_budget or None, budget.ram_budget or None
    return RunningPipeline(stages, cores, memory)


def _collect_stages(model, key):
    if key not in model.nodes:
        return []
    node = model.nodes[key]
    stage = _make_stage(node)
    inputs = list(node.inputs)
    if stage.name in NESTING:
        stage.nested_s = _nested_seconds(model, node, inputs[1:])
        stage.seconds += stage.nested_s * (stage.elements or 0)
        inputs = inputs[:1]
    stages = [] if stage.name == "Root" else [stage]
    for key in inputs:
        stages += _collect_stages(model, key)
    return stages


def _make_stage(node):
    parameters = {p.name: p for p in node.parameters}
    calls, buffer = parameters.get(PARALLELISM), parameters.get(BUFFER)
    tunable = [p for p in (calls, buffer) if p is not None and p.tunable]
    # TensorFlow adds up the times of parallel calls, in nanoseconds.
    parallel = max(calls.value, 1.0) if calls is not None else 1.0
    return RunningStage(
        name=_plain_name(node.name),
        seconds=node.processing_time * 1e-9 / parallel,
        elements=int(node.num_elements) or None,
        parallelism=None if calls is None else int(calls.value),
        buffer_size=None if buffer is None else int(buffer.value),
        buffered=int(node.buffered_elements),
        autotuned=bool(tunable),
        ratio=node.ratio,
    )


def _plain_name(name):
    """Turn `ParallelMapV2[...]` into `ParallelMap`."""
    name = name.split("[")[0]
    return name.rstrip("0123456789").removesuffix("V")


def _nested_seconds(model, node, keys):
    """Return the time for one element in the pipelines of a stage."""
    # TensorFlow forgets pipelines that have ended: those that still run stand
    # for all.
    seconds = elements = 0
    for key in keys:
        if key in model.nodes:
            seconds += sum(
                stage.seconds for stage in _collect_stages(model, key)
            )
            elements += model.nodes[key].num_elements
    calls = [p.value for p in node.parameters if p.name == PARALLELISM]
    return seconds / elements / max([*calls, 1.0]) if elements else 0.0


class PipelineSamples:
    """A few samples of one epoch's pipeline, and their summary."""

    def __init__(self):
        #: The call of the train function before which to take the next one.
        self.due = 2
        self._samples = []

    def take(self, iterator):
        """Sample the pipeline, and say when the next sample is due."""
        self.due *= SAMPLE_FACTOR
        sample = running_pipeline(iterator)
        if sample is not None:
            self._samples.append(sample)

    def summary(self, iterator):
        """Return the pipeline as it ran last, with its fullest buffers.

        None if no sample was taken.
        """
        last = running_pipeline(iterator)
        samples = [*self._samples, last] if last is not None else self._samples
        if not samples:
            return None
        # Stages whose data has ended are gone: use the last full sample.
        fullest = max(reversed(samples), key=len)
        stages = [
            self._merge_samples(
                stage, [s[place] for s in samples if place < len(s)]
            )
            for place, stage in enumerate(fullest)
        ]
        return RunningPipeline(stages, fullest.cpu_budget, fullest.ram_budget)

    @staticmethod
    def _merge_samples(stage, samples):
        matches = [s for s in samples if s.name == stage.name]
        nested_times = [s.nested_s for s in matches if s.nested_s]
        mean_nested = statistics.fmean(nested_times or [0.0])
        return dataclasses.replace(
            stage,
            buffered=max(s.buffered for s in matches),
            nested_s=mean_nested,
            seconds=stage.own_s + mean_nested * (stage.elements or 0),
        )
