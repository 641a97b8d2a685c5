"""Advice on PyDatasets, Python generators and torch DataLoaders."""

from keras_pergrad.analysis.pipelines.pipeline_facts import Advice, cores


def workers(facts):
    """Advise where a PyDataset has one worker."""
    if facts.kind != "pydataset" or facts.data.workers > 1:
        return None
    count = facts.threads_to_hide if facts.sleeps else max(4, cores())
    code = f"dataset.workers = {count}"
    if facts.computes:
        count = max(cores(), 2)
        code = f"dataset.workers = {count}\ndataset.use_multiprocessing = True"
    elif not facts.sleeps:
        code += (
            "\n# and dataset.use_multiprocessing = True if it computes in "
            "Python"
        )
    return Advice(
        "one worker",
        f"The PyDataset `{type(facts.data).__name__}` loads its batches in "
        "one thread.",
        code,
        facts.wait_ms * (1 - 1 / count),
    )


def too_many_workers(facts):
    """Advise where many threads compute in Python, one at a time."""
    if facts.kind != "pydataset" or facts.data.use_multiprocessing:
        return None
    count = facts.data.workers
    if count <= max(2 * cores(), 4) or not facts.computes:
        return None
    return Advice(
        "too many workers",
        f"{count} threads compute on {cores()} cores, and Python lets one of "
        "them run at a time: they hold up each other and the training. "
        "Processes compute side by side.",
        f"dataset.workers = {max(cores(), 2)}\n"
        "dataset.use_multiprocessing = True",
        facts.wait_ms / 2,
    )


def threads_that_compute(facts):
    """Advise where a few threads compute in Python, one at a time."""
    if facts.kind != "pydataset" or facts.data.use_multiprocessing:
        return None
    count = facts.data.workers
    if not 1 < count <= max(2 * cores(), 4) or not facts.computes:
        return None
    return Advice(
        "threads that compute",
        f"The {count} workers are threads and compute, and Python lets one "
        "of them run at a time. Processes compute side by side.",
        "dataset.use_multiprocessing = True",
        facts.wait_ms * (1 - 1 / max(cores(), 2)),
    )


def python_generator(facts):
    """Advise where the data is a plain Python generator."""
    if facts.kind != "generator":
        return None
    return Advice(
        "python generator",
        "A Python generator runs in one thread.",
        "class Data(keras.utils.PyDataset):\n"
        "    def __len__(self): return batches\n"
        "    def __getitem__(self, i): return load(i)  # x, y of batch i\n"
        "model.fit(Data(workers=4))",
        None,
    )


def dataloader_workers(facts):
    """Advise where a torch DataLoader has no workers."""
    if facts.kind != "dataloader" or facts.data.num_workers:
        return None
    return Advice(
        "num_workers",
        "The DataLoader loads its batches in the training process.",
        "loader = torch.utils.data.DataLoader(\n"
        "    loader.dataset, sampler=loader.sampler,\n"
        "    batch_size=loader.batch_size, collate_fn=loader.collate_fn,\n"
        # PyTorch warns of more workers than cores.
        f"    drop_last=loader.drop_last, num_workers={min(4, cores())})",
        None,
    )


RULES = (
    workers,
    too_many_workers,
    threads_that_compute,
    python_generator,
    dataloader_workers,
)
