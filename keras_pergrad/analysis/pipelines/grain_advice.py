"""Advice on Grain pipelines, in Grain's own words."""

from keras_pergrad.analysis.pipelines import grain_data
from keras_pergrad.analysis.pipelines.pipeline_facts import Advice, cores
from keras_pergrad.keras_internals.grain_parts import is_loader


def read_threads(facts):
    """Advise where reading sleeps, and few threads do it."""
    if facts.kind != "grain" or facts.computes:
        return None
    threads = grain_data.read_threads(facts.data)
    if grain_data.worker_processes(facts.data):
        return None
    wanted = max(facts.threads_to_hide, 16)
    if threads >= (wanted if facts.sleeps else 8):
        return None
    if is_loader(facts.data):
        code = (
            "loader = grain.DataLoader(\n"
            "    data_source=source, sampler=sampler, operations=operations,\n"
            f"    read_options=grain.ReadOptions(num_threads={wanted}))"
        )
    else:
        code = (
            "dataset = map_dataset.to_iter_dataset(\n"
            f"    grain.ReadOptions(num_threads={wanted}))"
        )
    return Advice(
        "grain read threads",
        f"Grain reads its samples in {threads or 'no'} thread(s) beside "
        "training.",
        code,
        facts.wait_ms * (1 - max(threads, 1) / wanted),
    )


def processes(facts):
    """Advise where Python computes in threads of the training process."""
    if facts.kind != "grain" or facts.sleeps:
        return None
    if grain_data.worker_processes(facts.data):
        return None
    if not facts.computes and grain_data.read_threads(facts.data) < 8:
        return None  # more threads come first
    code = (
        "dataset = dataset.mp_prefetch(\n"
        f"    grain.MultiprocessingOptions(num_workers={max(cores(), 2)}))"
    )
    if grain_data.is_random_access(facts.data):
        code = f"dataset = map_dataset.to_iter_dataset()\n{code}"
    elif is_loader(facts.data):
        # Keras 3.15 copies a DataLoader with functions that worker
        # processes cannot load (RecursionError): only datasets have workers.
        code = (
            "dataset = grain.MapDataset.source(source).to_iter_dataset()\n"
            "for operation in operations:\n"
            "    dataset = dataset.apply(operation)\n"
            f"{code}"
        )
    return Advice(
        "grain processes",
        "Grain's threads run in the training process, where Python computes "
        "in one thread at a time. Worker processes compute side by side; "
        "what they load must be picklable, and the script's own code must "
        'stand below `if __name__ == "__main__":`.',
        code,
        facts.wait_ms * (1 - 1 / max(cores(), 2)),
    )


def too_many_processes(facts):
    """Advise where worker processes outnumber the cores by far."""
    if facts.kind != "grain":
        return None
    count = grain_data.worker_processes(facts.data)
    if count <= 2 * cores():
        return None
    return Advice(
        "too many workers",
        f"{count} worker processes share {cores()} cores, with the training "
        "among them.",
        "dataset = dataset.mp_prefetch(\n"
        f"    grain.MultiprocessingOptions(num_workers={cores()}))",
        None,
    )


RULES = (read_threads, processes, too_many_processes)
