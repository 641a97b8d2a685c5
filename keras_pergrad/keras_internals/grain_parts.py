"""The parts of Grain's datasets and loaders.

Private names in use: `MapDataset._parents`, `IterDataset._read_options`,
`_multiprocessing_options`, `_datasets`; `DataLoader._data_source`,
`_sampler`, `_operations`, `_shard_options`;
`grain._src.python.dataset.dataset.get_execution_summary`.
"""


def parents_of(node):
    """List the datasets that a dataset is made from."""
    return getattr(node, "_parents", ())


def read_options(node):
    """Return the `ReadOptions` of a dataset, or None."""
    return getattr(node, "_read_options", None)


def worker_options(node):
    """Return the `MultiprocessingOptions` of a dataset or loader, or None."""
    return getattr(node, "_multiprocessing_options", None)


def interleaved(node):
    """List the datasets that a dataset takes turns with."""
    return getattr(node, "_datasets", ()) or ()


def is_loader(data):
    """Whether this is a `DataLoader`."""
    return hasattr(data, "_multiprocessing_options") and hasattr(
        data, "_sampler"
    )


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
