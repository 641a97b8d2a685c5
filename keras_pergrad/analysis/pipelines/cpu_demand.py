"""The processor time that this process's threads use, and wait for."""

import pathlib

# Threads that wake up often wait longer for a core than they use it: a larger
# ratio says nothing about what they compute.
MOST = 2.0
_THREADS = pathlib.Path("/proc/self/task")


def thread_seconds():
    """Return the threads' seconds on a core and in wait for one (on Linux)."""
    on_core = ready = 0
    try:
        threads = list(_THREADS.iterdir())
    except OSError:
        return None
    for thread in threads:
        try:
            times = (thread / "schedstat").read_text().split()
        except OSError:
            continue  # it has just ended, or the system keeps no account
        on_core += int(times[0])
        ready += int(times[1])
    return on_core * 1e-9, ready * 1e-9


def cpu_contention(before, after):
    """Return how much longer computing took for lack of cores, 1.0 to 2.0."""
    if before is None or after is None:
        return 1.0
    on_core, ready = after[0] - before[0], after[1] - before[1]
    if on_core <= 0 or ready <= 0:
        return 1.0
    return min(1.0 + ready / on_core, MOST)
