"""The return of memory-mapped files' pages once they have been used."""

import mmap

import numpy as np

#: Bytes of a file to go through before its pages are given back.
EVERY = 2**26


class Pages:
    """The pages of one array, if it is mapped from a file."""

    # They stay in the process until the system needs them, so its memory seems
    # to grow with the file. Nothing is lost when they are given back: the
    # pages of a shared mapping are the file's.

    def __init__(self, array):
        mapped = array
        while isinstance(mapped, np.memmap):  # also a view of another one
            mapped = mapped.base
        self._writes = getattr(array, "mode", "c") != "r"
        # Mode "c" keeps its changes only in those pages.
        shared = getattr(array, "mode", "c") != "c"
        self._file = mapped if shared and hasattr(mapped, "madvise") else None
        self._used = 0

    def use(self, amount):
        """Count bytes that were used; give pages back from time to time."""
        self._used += amount
        if self._file is None or self._used < EVERY:
            return
        if self._writes:
            self._file.flush()
        self._file.madvise(mmap.MADV_DONTNEED)
        self._used = 0
