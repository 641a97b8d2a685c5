"""The parts of a Grain pipeline.

Grain is an optional dependency: nothing here imports it until the data is
Grain's own.
"""

import re
import sys

from keras_pergrad.analysis.pipelines.tfdata_model import (
    RunningPipeline,
    RunningStage,
)
from keras_pergrad.keras_internals import grain_parts

_CLASSES = ("MapDataset", "IterDataset", "DataLoader")


def is_grain(data):
    """Whether this is a Grain DataLoader, MapDataset or IterDataset."""
    grain = sys.modules.get("grain")
    if grain is None:
        return False
    classes = tuple(
        c for c in (getattr(grain, name, None) for name in _CLASSES) if c
    )
    return isinstance(data, classes)


def _nodes(data):
    """Return a dataset and all that it is made of, the last stage first."""
    nodes = [data]
    for node in nodes:  # it grows
        nodes += grain_parts.parents_of(node)
    return nodes


def read_threads(data):
    """Return how many threads read samples; Grain's default is 16."""
    import grain

    for node in _nodes(data):
        options = grain_parts.read_options(node)
        if options is not None:
            return _number(options.num_threads)
    # A user's own IterDataset reads in the thread that asks.
    maps = [n for n in _nodes(data) if isinstance(n, grain.MapDataset)]
    return _number(grain.ReadOptions().num_threads) if maps else 0


def _number(setting):
    """Return a setting that Grain may choose by itself as a plain number."""
    return int(getattr(setting, "value", setting))


def worker_processes(data):
    """Return the number of worker processes; 0: the training process loads."""
    counts = map(grain_parts.worker_count, _nodes(data))
    return next((count for count in counts if count is not None), 0)


def is_random_access(data):
    """Whether samples are read by number: a MapDataset."""
    import grain

    return isinstance(data, grain.MapDataset)


def measured_stages(data, batches):
    """Return what Grain timed over some batches; None where it does not."""
    try:
        import grain

        options = grain.experimental.DatasetOptions(
            execution_tracking_mode=(
                grain.experimental.ExecutionTrackingMode.STAGE_TIMING
            )
        )
        if is_random_access(data):
            data = data.to_iter_dataset()
        if not isinstance(data, grain.IterDataset):
            return None
        watched = grain.experimental.WithOptionsIterDataset(data, options)
        summary_of = grain_parts.execution_summary()
    except (ImportError, AttributeError):
        return None
    iterator = iter(watched)
    for _, _ in zip(range(batches), iterator):
        pass
    return _pipeline(summary_of(iterator))


def _pipeline(summary):
    stages, key = RunningPipeline(), 0
    while key is not None and key in summary.nodes:
        node = summary.nodes[key]
        stages.append(
            RunningStage(
                name=_plain(node.name),
                seconds=node.total_processing_time_ns * 1e-9,
                elements=int(node.num_produced_elements) or None,
                parallelism=_threads(node.name),
            )
        )
        key = node.inputs[0] if node.inputs else None
    return stages


def _threads(name):
    threads = re.search(r"num_(?:threads|workers)=(\d+)", name)
    return int(threads.group(1)) if threads else None


def _plain(name):
    """Turn `MapMapDataset(transform=decode @ a.py:8)` into `map(decode)`."""
    kind, _, arguments = name.partition("(")
    kind = re.sub(r"(Map|Iter)?Dataset(Iterator)?$", "", kind).strip("_")
    inside = re.match(r"(?:transform|source)=([^\s,)@]+)", arguments)
    return kind.lower() + (f"({inside.group(1)})" if inside else "")
