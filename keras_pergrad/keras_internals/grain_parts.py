"""The parts of Grain's datasets and loaders.

Private names in use: `MapDataset._parents`, `IterDataset._read_options`,
`_multiprocessing_options`, `_datasets`; `DataLoader._data_source`,
`_sampler`, `_operations`, `_shard_options`;
`grain._src.python.dataset.dataset.get_execution_summary`.
"""

import sys
from typing import Any

from keras_pergrad.keras_internals.optional_names import optional


def parents_of(node):
    """List the datasets that a dataset is made from."""
    lost = "of a Grain pipeline reports know the last stage alone"
    return optional(node, "_parents", _numbers, lost, ())


def read_options(node):
    """Return the `ReadOptions` of a dataset, or None."""
    lost = "reports take Grain's default for the number of reading threads"
    return optional(node, "_read_options", _read_numbers, lost)


def worker_count(node):
    """Return how many processes load for a loader or a stage of a dataset.

    None: a stage that has none of its own.
    """
    lost = "reports do not know the worker processes of Grain"
    if is_loader(node):
        options = optional(node, "_multiprocessing_options", _loader, lost)
    else:  # an earlier Grain has it in a stage
        options = getattr(node, "_multiprocessing_options", None)
    if options is not None:
        return int(options.num_workers)
    name = type(node).__name__
    if "Interleave" in name or "ProcessPrefetch" in name:
        return len(optional(node, "_datasets", _interleaved, lost) or ())
    return None


def is_loader(data):
    """Whether this is a `DataLoader`."""
    grain = sys.modules.get("grain")
    return grain is not None and isinstance(data, grain.DataLoader)


def loader_arguments(loader):
    """Return what a `DataLoader` was made with, but for its options."""
    return {
        "data_source": loader._data_source,
        "sampler": loader._sampler,
        "operations": loader._operations,
        "shard_options": loader._shard_options,
    }


def execution_summary():
    """Return what gives Grain's timing of stages; ImportError: it has none."""
    from grain._src.python.dataset.dataset import get_execution_summary

    return get_execution_summary


def _numbers():
    import grain

    return grain.MapDataset.range(1)


def _read_numbers():
    return _numbers().to_iter_dataset()


def _interleaved():
    import grain

    numbers = [_read_numbers()]
    return grain.experimental.InterleaveIterDataset(numbers, cycle_length=1)


def _loader():
    import grain

    one: Any = range(1)
    sampler = grain.samplers.SequentialSampler(len(one))
    return grain.DataLoader(data_source=one, sampler=sampler)
