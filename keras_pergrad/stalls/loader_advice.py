"""The rules of advice on data that loaders and generators give.

As in `dataset_advice`, a rule takes the `Facts` of an epoch and returns its
`Advice`, or None.
"""

import textwrap

from keras_pergrad.keras_internals.data.sources import (
    is_grain,
    read_threads,
    worker_processes,
)
from keras_pergrad.stalls.advice import Advice

MOST_WORKERS = 64
# A fork copies this process without TensorFlow's threads.
PROCESSES = (
    "Processes compute in parallel. Keras forks them; if they hang, call "
    "`multiprocessing.set_start_method('spawn')` first."
)


def few_workers(facts):
    """Advise more workers for a `PyDataset` that has one, or whose wait."""
    workers, threads = facts.data.workers, facts.threads_to_hide
    count, more, how = max(4, facts.cores), "", "in one thread."
    if workers > 1:
        count = min(workers * threads, MOST_WORKERS)
        if not facts.may_wait or count <= workers:
            return None
        waits = "wait" if facts.surely_waits else "may wait"
        how = f"by {workers} workers, which {waits} (a disk, a network)."
    elif facts.surely_waits:
        count = min(threads, MOST_WORKERS)
    elif facts.surely_computes:
        count = max(facts.cores, 2)
        how += f" {PROCESSES}"
        more = "\ndataset.use_multiprocessing = True"
    else:
        more = (
            "\n# and dataset.use_multiprocessing = True if it computes in "
            "Python"
        )
    return Advice(
        "few workers",
        f"The PyDataset `{type(facts.data).__name__}` loads its batches {how}",
        f"dataset.workers = {count}{more}",
    )


def computing_threads(facts):
    """Advise processes for a `PyDataset` whose threads compute, or may."""
    threads = 0 if facts.data.use_multiprocessing else facts.data.workers
    if threads < 2 or not facts.may_compute:
        return None
    compute = "compute" if facts.surely_computes else "may compute"
    return Advice(
        "threads that compute",
        f"The {threads} workers are threads and {compute}, and Python lets one "
        f"of them run at a time. {PROCESSES}",
        f"dataset.workers = {max(facts.cores, 2)}\n"
        "dataset.use_multiprocessing = True",
    )


def python_generator(facts):
    """Advise a `PyDataset` in the place of a Python generator."""
    return Advice(
        "python generator",
        "A Python generator runs in one thread.",
        "class Data(keras.utils.PyDataset):\n"
        "    def __len__(self): return batches\n"
        "    def __getitem__(self, i): return load(i)  # x, y of batch i\n"
        "model.fit(Data(workers=4))",
    )


def loader_workers(facts):
    """Advise workers for a PyTorch loader that has none."""
    loader = facts.data
    # Without a batch size it cannot be made again as it is printed, and each
    # worker of an iterable dataset would give all of it.
    kinds = [base.__name__ for base in type(loader.dataset).__mro__]
    cannot = loader.batch_size is None or "IterableDataset" in kinds
    if cannot or loader.num_workers:
        return None
    return Advice(
        "num_workers",
        "The DataLoader loads its batches in the training process.",
        "loader = torch.utils.data.DataLoader(\n"
        "    loader.dataset, sampler=loader.sampler,\n"
        "    batch_size=loader.batch_size, collate_fn=loader.collate_fn,\n"
        # PyTorch warns of more workers than cores.
        "    drop_last=loader.drop_last, "
        f"num_workers={min(4, facts.cores)})",
    )


def grain_workers(facts):
    """Advise more threads for Grain that waits, processes if it computes."""
    if worker_processes(facts.data):
        return None
    threads = read_threads(facts.data)
    needed_threads = max(facts.threads_to_hide, 16)
    first, stream = "", "map_dataset.to_iter_dataset()"
    if is_grain(facts.data, "IterDataset"):
        stream = "dataset"
    elif is_grain(facts.data, "DataLoader"):
        # Keras 3.15 copies a DataLoader with functions that worker processes
        # cannot load (RecursionError): only datasets have workers.
        first = (
            "map_dataset = grain.MapDataset.source(source)\n"
            "for each in operations: map_dataset = map_dataset.apply(each)\n"
        )
    more_threads = (
        "dataset = map_dataset.to_iter_dataset(\n"
        f"    grain.ReadOptions(num_threads={needed_threads}))"
    )
    processes = (
        f"dataset = {stream}.mp_prefetch(\n"
        f"    grain.MultiprocessingOptions(num_workers={max(facts.cores, 2)}))"
    )
    how = f"in {threads or 'no'} thread(s) during training."
    has_enough = threads >= needed_threads
    if facts.surely_waits:
        if has_enough:
            return None
        code = more_threads
    else:
        if facts.surely_computes:
            how = "in threads, of which Python runs one at a time."
            code = processes
        elif has_enough:
            how += " If they compute in Python, they take turns."
            code = processes
        else:
            how += " If they wait, use more; if they compute, use processes."
            code = f"{more_threads}\n# or\n{textwrap.indent(processes, '# ')}"
        how += (
            " Processes need picklable data, and your code below "
            '`if __name__ == "__main__":`.'
        )
    return Advice(
        "grain workers", f"Grain loads its samples {how}", f"{first}{code}"
    )


#: By the kind of `Facts`.
RULES = {
    "pydataset": (few_workers, computing_threads),
    "generator": (python_generator,),
    "dataloader": (loader_workers,),
    "grain": (grain_workers,),
}
