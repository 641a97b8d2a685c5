"""Memory of this process and of its worker processes."""

import multiprocessing
import os
import pathlib


def resident_bytes():
    """Return the bytes of this process and its children (on Linux)."""
    pids = [os.getpid(), *(c.pid for c in multiprocessing.active_children())]
    sizes = [_proportional(pid) for pid in pids]
    return None if sizes[0] is None else sum(size or 0 for size in sizes)


def _proportional(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):  # counts pages that forks share once
            return 1024 * int(line.split()[1])
    return None
