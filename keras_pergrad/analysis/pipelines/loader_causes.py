"""Causes of a stall in data of Python: `PyDataset`, PyTorch, Grain.

As in `stall_causes`, a function is the `when` of a row of advice.
"""

from keras_pergrad.analysis.pipelines import grain_data
from keras_pergrad.analysis.pipelines.pipeline_facts import cores
from keras_pergrad.keras_internals.grain_parts import is_loader

_MOST_WORKERS = 64
PROCESSES = "dataset.use_multiprocessing = True"


def few_workers(facts):
    """Whether a `PyDataset` has one worker, or too few for loads that sleep."""
    workers = facts.data.workers
    count, more, how = max(4, cores()), "", "in one thread"
    if facts.sleeps:
        count = min(max(workers, 1) * facts.threads_to_hide, _MOST_WORKERS)
    if workers > 1:
        if not facts.sleeps or count <= workers:
            return None
        how = f"by {workers} workers, which wait (a disk, a network)"
    elif facts.sleeps:
        pass
    elif facts.computes:
        count, more = max(cores(), 2), f"\n{PROCESSES}"
    else:
        more = f"\n# and {PROCESSES} if it computes in Python"
    name = type(facts.data).__name__
    return {"name": name, "how": how, "count": count, "more": more}


def computing_threads(facts, many):
    """Whether threads of a `PyDataset` compute; many: the cores serve fewer."""
    threads = 0 if facts.data.use_multiprocessing else facts.data.workers
    too_many = threads > max(2 * cores(), 4)
    if threads < 2 or not facts.computes or too_many != many:
        return None
    return {"threads": threads, "cores": cores(), "count": max(cores(), 2)}


def no_loader_workers(facts):
    """Whether a PyTorch loader loads in the training process."""
    # PyTorch warns of more workers than cores.
    return None if facts.data.num_workers else {"count": min(4, cores())}


def few_read_threads(facts):
    """Whether Grain reads by few threads."""
    if facts.computes or grain_data.worker_processes(facts.data):
        return None
    threads = grain_data.read_threads(facts.data)
    wanted = max(facts.threads_to_hide, 16)
    if threads >= (wanted if facts.sleeps else 8):
        return None
    code = "dataset = map_dataset.to_iter_dataset(\n    "
    if is_loader(facts.data):
        code = (
            "loader = grain.DataLoader(\n"
            "    data_source=source, sampler=sampler, operations=operations,\n"
            "    read_options="
        )
    return {"threads": threads or "no", "wanted": wanted, "code": code}


def no_grain_processes(facts):
    """Whether Grain computes in the training process."""
    if facts.sleeps or grain_data.worker_processes(facts.data):
        return None
    if not facts.computes and grain_data.read_threads(facts.data) < 8:
        return None  # more threads come first
    first = ""
    if grain_data.is_random_access(facts.data):
        first = "dataset = map_dataset.to_iter_dataset()\n"
    elif is_loader(facts.data):
        # Keras 3.15 copies a DataLoader with functions that worker
        # processes cannot load (RecursionError): only datasets have workers.
        first = (
            "dataset = grain.MapDataset.source(source).to_iter_dataset()\n"
            "for each in operations: dataset = dataset.apply(each)\n"
        )
    return {"first": first, "count": max(cores(), 2)}


def many_grain_processes(facts):
    """Whether Grain has more processes than the cores serve."""
    count = grain_data.worker_processes(facts.data)
    many = count > 2 * cores()
    return {"processes": count, "cores": cores()} if many else None
