"""First-step time and peak memory, one rival a process."""

from benchmarks.process import Worker, WorkerError


def run(entries, log=print):
    """Measures each entry in a process of its own.

    Returns:
        {entry key: {"first_ms", "peak_mb"} or {"error"}}.
    """
    found = {}
    for entry in entries:
        found[entry.key] = _alone(entry)
        log(f"  {entry.key}: {found[entry.key]}")
    return found


def _alone(entry):
    if entry.error is not None:
        return {"error": entry.error}
    try:
        framework, process = entry.process
        worker = Worker(framework, onednn=process != "eigen")
    except WorkerError as error:
        return {"error": str(error)}
    try:
        return worker.ask("alone", **entry.request)
    except WorkerError as error:
        return {"error": str(error)}
    finally:
        worker.close()
