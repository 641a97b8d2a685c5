"""The arrays that take the gradients of all chunks."""

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.input_gradients.paging import Pages


class GatheredRows:
    """One row a sample, written to the caller's arrays (`out`) or to its own.

    Attributes:
        rows: how many have been written.
    """

    def __init__(self, out, samples):
        self.rows = 0
        self._out = out
        self._samples = samples
        self._structure = None
        self._arrays = None
        self._pages = []
        self._parts = []

    def write(self, gradients, count):
        parts = [g.numpy() for g in tf.nest.flatten(gradients)]
        if self._structure is None:
            self._structure = gradients
            self._arrays = self._open(gradients, parts)
            self._pages = [Pages(array) for array in self._arrays or ()]
        stop = self.rows + count
        if self._arrays is None:
            self._parts.append(parts)
        elif stop > len(self._arrays[0]):
            raise ValueError(
                f"`out` has {len(self._arrays[0])} rows, but x has more "
                f"samples. The first {self.rows} are written."
            )
        for array, pages, part in zip(self._arrays or (), self._pages, parts):
            array[self.rows : stop] = part
            pages.use(part.nbytes)
        self.rows = stop

    def _open(self, gradients, parts):
        n = self._samples
        if self._out is not None:
            return _checked(self._out, gradients, parts, n)
        if n is None:
            return None
        return [np.empty((n, *p.shape[1:]), p.dtype) for p in parts]

    def result(self):
        if self._structure is None:
            raise ValueError("x must hold at least one sample. Received: none")
        arrays = self._arrays
        if arrays is None:
            arrays = [np.concatenate(parts) for parts in zip(*self._parts)]
        elif self.rows < len(arrays[0]):
            raise ValueError(
                f"`out` has {len(arrays[0])} rows, but x has only {self.rows} "
                "samples. They are written."
            )
        if self._out is not None:
            return self._out
        return tf.nest.pack_sequence_as(self._structure, arrays)


class Total:
    """The sum or the mean over all samples.

    Attributes:
        rows: how many samples went into it.
    """

    def __init__(self, mean):
        self.rows = 0
        self._mean = mean
        self._total = None

    def write(self, sums, count):
        sums = tf.nest.map_structure(lambda t: t.numpy(), sums)
        if self._total is None:
            self._total = sums
        else:
            self._total = tf.nest.map_structure(np.add, self._total, sums)
        self.rows += count

    def result(self):
        if self._total is None:
            raise ValueError("x must hold at least one sample. Received: none")
        count = self.rows if self._mean else 1
        return tf.nest.map_structure(lambda t: t / count, self._total)


def _checked(out, gradients, parts, samples):
    """Return the arrays of `out` after checking that they fit."""
    try:
        tf.nest.assert_same_structure(out, gradients)
    except (TypeError, ValueError):
        raise ValueError(
            "`out` must have the structure of x: one array for each input "
            "(for several outputs a list or dict of such structures). "
            f"Received: out={type(out).__name__}"
        ) from None
    arrays = tf.nest.flatten(out)
    for array, part in zip(arrays, parts):
        if not isinstance(array, np.ndarray):
            raise TypeError(
                "`out` must be a NumPy array or a memory-mapped one "
                "(numpy.lib.format.open_memmap). Received: "
                f"{type(array).__name__}"
            )
        n = samples or (len(array) if array.ndim else 0)
        shape = (n, *part.shape[1:])
        if array.shape != shape or array.dtype != part.dtype:
            raise ValueError(
                f"`out` must have shape {shape} and dtype {part.dtype}. "
                f"Received: shape {array.shape}, dtype {array.dtype}"
            )
        if not array.flags.writeable:
            raise ValueError(
                "`out` is read-only. Open a memory-mapped file with "
                'mode="r+" (or "w+" to make it).'
            )
    return arrays
