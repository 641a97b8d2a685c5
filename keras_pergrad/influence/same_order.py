"""Batches of a data set, which must be the same in each pass over it."""

import zlib

import numpy as np
import tensorflow as tf


class SameOrder:
    """The batches of a data set; another order in a later pass is refused.

    Samples are numbered by their places, which another order would mix up.

    Args:
        batches: from `batches_of`.
        name: of the argument that they come from.
    """

    def __init__(self, batches, name):
        self._batches, self._name = batches, name
        self.count = batches.count
        self._known = {}
        next(iter(self))  # Else the order of a single pass would be unknown.

    def __iter__(self):
        return self.beginning(0)

    def beginning(self, number):
        """Yield the batches from one of this number on."""
        for place, batch in enumerate(self._batches.beginning(number), number):
            checksum = _checksum(batch)
            if self._known.setdefault(place, checksum) != checksum:
                raise ValueError(
                    f"The data set of `{self._name}` must give the same "
                    "batches in the same order each time. Received: another "
                    f"batch number {place} than before, as after "
                    "shuffle() or random changes in map(). Give arrays, "
                    "shuffle(..., reshuffle_each_iteration=False), or cache() "
                    "behind what is random."
                )
            yield batch


def _checksum(batch):
    checksum = 0
    for part in tf.nest.flatten(batch, expand_composites=True):
        if part is not None:
            array = np.asarray(part)
            is_text = array.dtype == object
            data = b"\0".join(array.reshape(-1)) if is_text else array.tobytes()
            checksum = zlib.crc32(data, checksum)
    return checksum
