"""The memory of this machine that is free."""

import os
import pathlib

_LIMITS = (  # of a container: (limit, in use), version 2 and 1
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_bytes():
    """Return how many bytes are free, within the limit of a container."""
    # Where the system does not say (not Linux) half of the memory; None if even
    # that is not known.
    sizes = [_available(), *map(_left_in_container, *zip(*_LIMITS))]
    known = [size for size in sizes if size is not None]
    if known:
        return min(known)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return None


def resident_bytes():
    """Return what this process has in memory; None: the system does not say."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _available():
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _left_in_container(limit, used):
    folder = pathlib.Path("/sys/fs/cgroup")
    try:
        left = int((folder / limit).read_text())
        return max(0, left - int((folder / used).read_text()))
    except (OSError, ValueError):  # there is none, or its limit is "max"
        return None


def as_text(size):
    """Return a number of bytes as in "1.2 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
