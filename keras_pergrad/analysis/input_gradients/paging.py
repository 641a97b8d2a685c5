"""The return of memory-mapped files' pages once they have been used."""

import mmap

import numpy as np

#: Bytes of a file to go through before its pages are given back.
EVERY = 2**26

_used: dict[int, int] = {}


def release(array, amount):
    """Note that `amount` bytes of `array` were used; free from time to time.

    A mapped file's pages stay in the process until the system needs them, so
    the memory of the process seems to grow with the file. Nothing is lost: the
    pages of a shared mapping are the file's.
    """
    mapped = array
    while isinstance(mapped, np.memmap):  # also a view of another one
        mapped = mapped.base
    if not hasattr(mapped, "madvise"):
        return
    # Mode "c" keeps its changes only in those pages.
    if getattr(array, "mode", "c") == "c":
        return
    used = _used.get(id(mapped), 0) + amount
    if used >= EVERY:
        if array.mode != "r":
            mapped.flush()
        mapped.madvise(mmap.MADV_DONTNEED)
        used = 0
    _used[id(mapped)] = used
