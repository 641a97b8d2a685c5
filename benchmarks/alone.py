"""First-step time and peak memory, one rival a process."""

from benchmarks.process import LIMIT, Worker, WorkerError


def run(entries, log=print, limit=LIMIT):
    """Measures each entry in a process of its own, `limit` seconds at most.

    Returns:
        {entry key: {"first_ms", "peak_mb", "process_mb"} or {"error"}}.
    """
    found = {}
    for entry in entries:
        found[entry.key] = _alone(entry, limit)
        log(f"  {entry.key}: {found[entry.key]}")
    return found


def _alone(entry, limit):
    if entry.error is not None:
        return {"error": entry.error}
    try:
        framework, process = entry.process
        worker = Worker(framework, onednn=process != "eigen", limit=limit)
    except WorkerError as error:
        return {"error": str(error)}
    try:
        return worker.ask("alone", **entry.request)
    except WorkerError as error:
        return {"error": str(error)}
    finally:
        worker.close()
