"""The memory that TensorFlow's pool takes from the system, and keeps.

With oneDNN, tensors on the CPU come from a pool (`BFCAllocator`): the smallest
free piece that fits is taken, and cut if less than half of it is needed. What
was freed is used again, but not given back, and gaps stay between tensors.
"""

import bisect

import numpy as np

#: Smaller tensors are not from the pool.
SMALL = 4096
_ALIGNED = 256
_FIRST_REGION = 2 << 20
_MOST_WASTED = 128 << 20
_PAGE = 1 << 14


class Piece:
    """A part of a region; `pages`: which pages of the region were written."""

    __slots__ = ("after", "before", "first", "free", "pages", "size", "start")

    def __init__(self, start, size, first, pages):
        self.start, self.size, self.first = start, size, first
        self.pages, self.free = pages, True
        self.before = self.after = None

    def write(self, size):
        """Write to the first bytes; return how many are new."""
        first = (self.start - self.first) // _PAGE
        last = -(-(self.start - self.first + size) // _PAGE)
        pages = self.pages[first:last]
        new = len(pages) - int(np.count_nonzero(pages))
        pages[:] = True
        return new * _PAGE


class Pool:
    """A pool of memory; `taken` is what it holds of the system's memory.

    Memory that was never written does not count.
    """

    def __init__(self):
        self.taken = 0
        self._free = []
        self._next_region = _FIRST_REGION
        self._end = 0

    def allocate(self, size):
        """Return the `Piece` for a tensor, or None: it is too small."""
        if size < SMALL:
            return None
        size = -(-size // _ALIGNED) * _ALIGNED
        place = bisect.bisect_left(self._free, (size, -1))
        if place == len(self._free):
            self._grow(size)
            place = bisect.bisect_left(self._free, (size, -1))
        piece = self._free.pop(place)[2]
        if piece.size >= 2 * size or piece.size - size >= _MOST_WASTED:
            self._cut(piece, size)
        piece.free = False
        self.taken += piece.write(size)
        return piece

    def free(self, piece):
        """Give a piece back; it joins the free ones beside it."""
        if piece is None:
            return
        piece.free = True
        for other in (piece.after, piece.before):
            if other is not None and other.free:
                self._remove(other)
                first, second = sorted((piece, other), key=lambda p: p.start)
                piece = _joined(first, second)
        bisect.insort(self._free, (piece.size, piece.start, piece))

    def _remove(self, piece):
        place = bisect.bisect_left(self._free, (piece.size, piece.start))
        del self._free[place]

    def _cut(self, piece, size):
        start, left = piece.start + size, piece.size - size
        rest = Piece(start, left, piece.first, piece.pages)
        piece.size = size
        rest.before, rest.after = piece, piece.after
        if piece.after is not None:
            piece.after.before = rest
        piece.after = rest
        bisect.insort(self._free, (rest.size, rest.start, rest))

    def _grow(self, size):
        grown = False
        while size > self._next_region:
            self._next_region *= 2
            grown = True
        pages = np.zeros(-(-self._next_region // _PAGE), bool)
        piece = Piece(self._end, self._next_region, self._end, pages)
        self._end += self._next_region + 1  # regions do not touch
        bisect.insort(self._free, (piece.size, piece.start, piece))
        if not grown:
            self._next_region *= 2


def _joined(first, second):
    """Join two free pieces that lie side by side."""
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
    first.free = True
    return first
