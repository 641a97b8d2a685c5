"""Timing, memory and the check of one job."""

import pathlib
import statistics
import time

import numpy as np

from benchmarks.harness.job import LEARNING_RATE
from benchmarks.harness.rivals import CLIPPED

#: A repetition takes at least this long, so that the clock is no issue.
SECONDS = 0.03


def repetition(step):
    """Milliseconds of one step.

    Short steps are repeated and their median is taken, without the first
    one, which finds the caches full of another process's data.
    """
    times = []
    end = time.perf_counter() + SECONDS
    while not times or (len(times) < 50 and time.perf_counter() < end):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:] or times)


def check(job, task):
    """Runs the job once from the common weights, and describes the result.

    The description is the Euclidean norm of each variable's part, sorted:
    frameworks differ in the layout and order of weights, not in these.
    """
    before = [np.array(w, "float64") for w in job.weights()]
    start = time.perf_counter()
    result = job.step()
    first = time.perf_counter() - start
    if task == CLIPPED:
        found = [
            (old - np.array(new, "float64")) / LEARNING_RATE
            for old, new in zip(before, job.weights())
        ]
    else:
        found = [np.asarray(g) for g in result or []]
    norms = [float(np.linalg.norm(g.ravel())) for g in found]
    if not np.all(np.isfinite(norms)):
        raise ValueError("the result is not finite")
    del result, found
    job.step()
    return {"norms": sorted(norms), "first_ms": 1e3 * first}


def alone(build, what, card=None, *, steps=3):
    """First-step time and peak memory of a job that has the process to itself.

    Args:
        build: makes the job, of `what`.
        card: a function that gives (bytes in use, the most since the last call)
            of a GPU, or None where there is none.
        steps: how many steps are watched.

    Returns:
        "first_ms"; "peak_mb", from the moment before the first step, when model
        and batch are there, to the highest point of later steps; and
        "process_mb", the highest point of the process, first step included. On
        a GPU "peak_mb" is of its memory.
    """
    job = build(**what)
    base, in_use = memory("VmRSS"), card and card()[0]
    start = time.perf_counter()
    job.step()
    first = time.perf_counter() - start
    job.step()
    highest = memory("VmHWM")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    for _ in range(steps):
        job.step()
    later = memory("VmHWM")
    if card is not None:
        return {
            "first_ms": 1e3 * first,
            "peak_mb": (card()[1] - in_use) / 1e6,
            "process_mb": max(highest, later),
        }
    return {
        "first_ms": 1e3 * first,
        "peak_mb": later - base,
        "process_mb": max(highest, later),
    }


def memory(field):
    """A field of this process's status in megabytes (Linux)."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no {field} in /proc/self/status")
