"""First-step time and peak memory, one rival a process."""

import statistics

from benchmarks.harness.process import LIMIT, Worker, WorkerError


def run(entries, log=print, limit=LIMIT, *, turns=1):
    """Measures each entry in processes of its own, `limit` seconds at most.

    Args:
        entries: what to measure.
        log: takes a line of progress.
        limit: seconds for a process.
        turns: processes of each entry; the entries take turns.

    Returns:
        {entry key: {"first_ms", "peak_mb", "process_mb"} or {"error"}}, each
        figure the median of the turns.
    """
    found = {entry.key: [] for entry in entries}
    for _ in range(turns):
        for entry in entries:
            found[entry.key].append(_alone(entry, limit))
            log(f"  {entry.key}: {found[entry.key][-1]}")
    return {key: _median(figures) for key, figures in found.items()}


def _median(turns):
    """The median of each figure; the first error, if there is one."""
    failed = [turn for turn in turns if "error" in turn]
    if failed:
        return failed[0]
    return {
        figure: statistics.median(turn[figure] for turn in turns)
        for figure in turns[0]
    }


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
