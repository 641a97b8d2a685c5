"""One block of a Kronecker-factored curvature: a basis and eigenvalues."""

import numpy as np

#: Of the mean eigenvalue of a block.
_SHARE = 0.1
#: The least damping of a bias, over its kernel's, if it has none.
_FLOOR = 1e-8


class Block:
    """The curvature of one variable, or of a kernel and its bias.

    Args:
        places: of the variable, or of kernel and bias.
        shape, axes: of the kernel; its `axes` make up the left side.
        sums: left side, right side, count, and the gradients' squares.
        samples: how many.
        damping: a number, or None.
        penalties: of the regularisers, one for each variable.

    Attributes:
        inputs, outputs: U and V, of which Uᵀ G V is on the axes; None: G is.
        values: the eigenvalues, (i, o).
    """

    def __init__(self, places, shape, axes, sums, samples, damping, penalties):
        inputs, outputs, count, squares = sums
        others = [k for k in range(len(shape)) if k not in axes]
        self.places = places
        self._order, self._shape = [*axes, *others], list(shape)
        rows, columns = len(inputs), len(outputs)
        added = np.full(rows, penalties[0])
        added[-1] = penalties[-1]
        if damping is None:
            mean = squares / samples / (rows * columns)
            damping = _SHARE * (mean + added.mean())
        added += damping
        # In units in which all rows have the same penalty and damping.
        added = np.maximum(added, _FLOOR * added.max())
        self._added = added[0]
        units = np.sqrt(added / added[0]) if added[0] else np.ones(rows)
        if np.ptp(units):
            inputs = inputs / np.outer(units, units)
        self.inputs, left = _eigen(inputs)
        if self.inputs is not None:  # Only a matrix has a bias's row.
            self.inputs = self.inputs / units[:, None]
        self.outputs, right = _eigen(outputs)
        self._sums = np.outer(left, right) / count
        self._measured = None

    def add(self, squares):
        """Add sums of squares of gradients in the basis."""
        squares = squares.reshape(self._sums.shape)
        before = 0 if self._measured is None else self._measured
        self._measured = before + squares

    def finish(self, samples):
        """Set the eigenvalues once all samples are counted."""
        measured = self._sums if self._measured is None else self._measured
        self.values = measured / samples + self._added
        # No sample bends these, and a gradient of zero stays zero.
        self.values[self.values <= 0] = np.inf

    def solve(self, gradients):
        """Return the gradients of its variables over the curvature."""
        kernel, *bias = gradients
        m, order = len(kernel), self._order
        moved = np.transpose(kernel, [0, *(1 + k for k in order)])
        columns = self._sums.shape[1]
        rows = moved.reshape(m, -1, columns)
        if bias:
            rows = np.concatenate([rows, bias[0][:, None]], 1)
        rows = _turned(rows, self.inputs, self.outputs) / self.values
        back = [t if t is None else t.T for t in (self.inputs, self.outputs)]
        rows = _turned(rows, *back).astype(kernel.dtype)
        own = rows[:, :-1] if bias else rows
        own = np.transpose(
            own.reshape(moved.shape), [0, *(1 + np.argsort(order))]
        )
        return [own, rows[:, -1]] if bias else [own]


def _turned(rows, inputs, outputs):
    """Return inputsᵀ G outputs of each G, (m, i, o)."""
    if inputs is not None:
        rows = np.matmul(inputs.T, rows)
    return rows if outputs is None else np.matmul(rows, outputs)


def _eigen(matrix):
    """Return eigenvectors (None: the axes) and eigenvalues, none negative."""
    if matrix.ndim == 1:
        return None, matrix
    values, vectors = np.linalg.eigh(matrix)
    return vectors, np.maximum(values, 0)
