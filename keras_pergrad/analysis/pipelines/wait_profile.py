"""Waits of any number of batches in constant memory."""

import math

import numpy as np

SHORTEST = 1e-6
RATIO = 1.01
BINS = 2400  # up to about 2e4 seconds


class WaitHistogram:
    """Percentiles of the waits, to one per cent of their value."""

    def __init__(self):
        self.counts = np.zeros(BINS, np.int64)
        self.longest = 0.0
        self.longest_step = None
        self.total = 0

    def add(self, waits):
        scaled = np.log(np.maximum(waits, SHORTEST) / SHORTEST)
        bins = np.minimum(scaled / math.log(RATIO), BINS - 1).astype(int)
        np.add.at(self.counts, bins, 1)
        if len(waits):
            at = int(np.argmax(waits))
            if self.longest_step is None or waits[at] > self.longest:
                self.longest = float(waits[at])
                self.longest_step = self.total + at
        self.total += len(waits)

    def percentile(self, percent):
        """Return the wait that `percent` of the batches do not exceed, in s."""
        if not self.total:
            return None
        rank = max(1, math.ceil(self.total * percent / 100))
        at = int(np.searchsorted(np.cumsum(self.counts), rank))
        middle = SHORTEST * RATIO ** (at + 0.5)
        return 0.0 if at == 0 else float(min(middle, self.longest))


class Timeline:
    """Mean wait and compute of neighbouring batches, for drawing.

    When `size` groups are full, neighbours are joined.
    """

    def __init__(self, size=512):
        self.size = size
        self.group = 1  # batches in a group
        self._sums = np.zeros((size, 2))
        self._batches = 0

    def add(self, waits, computes):
        pairs = np.column_stack([waits, computes])
        while len(pairs):
            room = self.size * self.group - self._batches
            if not room:
                joined = self._sums[0::2] + self._sums[1::2]
                self._sums[:] = 0
                self._sums[: self.size // 2] = joined
                self.group *= 2
                continue
            now, pairs = pairs[:room], pairs[room:]
            batches = self._batches + np.arange(len(now))
            np.add.at(self._sums, batches // self.group, now)
            self._batches += len(now)

    def arrays(self):
        """Return each group's first batch, mean wait and mean compute (s)."""
        groups = math.ceil(self._batches / self.group)
        first = np.arange(groups) * self.group
        sizes = np.minimum(self.group, self._batches - first)
        means = self._sums[:groups] / np.maximum(sizes, 1)[:, None]
        return first, means[:, 0], means[:, 1]
