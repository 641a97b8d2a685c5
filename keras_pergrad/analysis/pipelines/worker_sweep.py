"""Rates of one loader with different numbers of workers."""

import copy
import dataclasses
import numbers

from keras_pergrad.analysis.pipelines import grain_data
from keras_pergrad.keras_internals.grain_parts import loader_arguments

THREADS, PROCESSES = "threads", "processes"
NEAR_THE_BEST = 0.9


@dataclasses.dataclass
class WorkerTrial:
    """One number of workers, tried.

    Attributes:
        workers: How many.
        by: "threads" or "processes".
        batches_per_s: None if it failed.
        memory_mib: Memory of the process and its workers, in MiB, or None.
        error: What was raised, or None.
    """

    workers: int
    by: str
    batches_per_s: float | None
    memory_mib: float | None = None
    error: str | None = None

    def cells(self, is_knee):
        """Its row of a table: three strings."""
        name = f"{self.workers} {self.by}" if self.workers else "0"
        if self.batches_per_s is None:
            return (f"{name} ({self.error})", "failed", "")
        memory = self.memory_mib
        return (
            name + (" <- enough" if is_knee else ""),
            f"{self.batches_per_s:.1f}",
            "" if memory is None else f"{memory:.0f}",
        )


def worker_counts(workers):
    """Check and return the numbers of workers as a sorted tuple."""
    if workers is None:
        return ()
    counts = tuple(workers) if hasattr(workers, "__iter__") else (workers,)
    for count in counts:
        whole = isinstance(count, numbers.Integral)
        if not whole or isinstance(count, bool) or count < 0:
            raise ValueError(
                "`workers` expected integers of at least 0, such as "
                f"(0, 1, 2, 4). Received: workers={workers!r}"
            )
    return tuple(sorted({int(count) for count in counts}))


def can_sweep(kind):
    """Whether data of this kind has workers."""
    return kind in _CHANGED


def trials(data, kind, counts, measure):
    """Return a `WorkerTrial` for each number; `measure`: of a changed copy."""
    tried = []
    for by in (THREADS, PROCESSES) if counts else ():
        for count in counts:
            if by == PROCESSES and not count:
                continue
            changed = _CHANGED[kind](data, count, by == PROCESSES)
            if changed is not None:
                tried.append(_trial(changed, count, by, measure))
    return tried


def _trial(changed, count, by, measure):
    try:
        measured = measure(changed)
    except Exception as error:  # whatever a loader raises belongs in its row
        return WorkerTrial(count, by, None, error=type(error).__name__)
    memory = measured.memory
    return WorkerTrial(
        count,
        by,
        measured.batches_per_s,
        None if memory is None else memory / 2**20,
    )


def knee(tried):
    """Return the trial with the fewest workers near the best rate, or None."""
    known = [t for t in tried if t.batches_per_s is not None]
    if not known:
        return None
    best = max(trial.batches_per_s for trial in known)
    near = [t for t in known if t.batches_per_s >= NEAR_THE_BEST * best]
    return min(near, key=lambda t: (t.workers, -t.batches_per_s))


def _py_dataset(data, count, processes):
    changed = copy.copy(data)
    changed.workers = count
    changed.use_multiprocessing = processes
    return changed


def _torch_loader(data, count, processes):
    if count and not processes:
        return None  # it has no threads
    return type(data)(
        data.dataset,
        batch_size=data.batch_size,
        sampler=data.sampler,
        collate_fn=data.collate_fn,
        drop_last=data.drop_last,
        num_workers=count,
    )


def _grain(data, count, processes):
    import grain

    if isinstance(data, grain.DataLoader):
        # Keras copies a DataLoader with functions that worker processes
        # cannot load: only its threads can be tried.
        return None if processes else _grain_loader(data, count)
    if processes:
        options = grain.MultiprocessingOptions(num_workers=count)
        if grain_data.is_random_access(data):
            data = data.to_iter_dataset()
        elif grain_data.worker_processes(data):
            return None
        return data.mp_prefetch(options)
    if not grain_data.is_random_access(data):
        return None  # its threads were chosen when it was made
    return data.to_iter_dataset(grain.ReadOptions(num_threads=count))


def _grain_loader(data, count):
    import grain

    return grain.DataLoader(
        **loader_arguments(data),
        read_options=grain.ReadOptions(num_threads=count),
    )


_CHANGED = {
    "pydataset": _py_dataset,
    "dataloader": _torch_loader,
    "grain": _grain,
}
