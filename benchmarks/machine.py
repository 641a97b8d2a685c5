"""What the figures were measured on."""

import os
import pathlib
import platform

from benchmarks.process import THREADS, Worker, WorkerError


def describe(frameworks):
    """The machine, the threads, and the version of every framework."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "accelerator": "none used",
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": _versions(frameworks),
    }


def _cpu():
    path = pathlib.Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _versions(frameworks):
    found = {}
    for framework in frameworks:
        try:
            worker = Worker(framework)
        except WorkerError:
            continue
        try:
            found.update(worker.ask("versions"))
        except WorkerError:
            continue
        finally:
            worker.close()
    return found
