"""One block of a Kronecker-factored curvature: a basis and eigenvalues."""

import numpy as np

from keras_pergrad.influence.definiteness import rounding_share

#: The default damping, as a share of a block's mean eigenvalue.
_DAMPING_SHARE = 0.1
#: The least damping of a bias, over its kernel's, if it has none.
_DAMPING_FLOOR = 1e-8


class Block:
    """The curvature of one variable, or of a kernel and its bias.

    Args:
        indices: those of the variable, or of the kernel and its bias.
        shape, axes: the kernel's; its `axes` make up the input side.
        sums: over the samples: input side, output side, count, and the
            squares of the gradients.
        samples: the number of samples.
        damping: a number, or None.
        penalties: of the regularisers, one for each variable.

    Attributes:
        inputs, outputs: the eigenvectors U and V: the curvature is diagonal
            for Uᵀ G V. None: that side is diagonal already.
        eigenvalues: those of the block, (i, o).
    """

    def __init__(
        self, indices, shape, axes, *, sums, samples, damping, penalties
    ):
        inputs, outputs, count, squares = sums
        output_axes = [k for k in range(len(shape)) if k not in axes]
        self.indices = indices
        self._order, self._shape = [*axes, *output_axes], list(shape)
        rows, columns = len(inputs), len(outputs)
        shift = np.full(rows, penalties[0])
        shift[-1] = penalties[-1]
        self._is_given = damping is not None
        if damping is None:
            mean_square = squares / samples / (rows * columns)
            damping = _DAMPING_SHARE * (mean_square + shift.mean())
        shift += damping
        # The bias's row may have another penalty than the kernel's. Rows are
        # scaled so that all have the same shift, which then adds to every
        # eigenvalue.
        shift = np.maximum(shift, _DAMPING_FLOOR * shift.max())
        self._shift, self._damping = shift[0], damping
        units = np.sqrt(shift / shift[0]) if shift[0] else np.ones(rows)
        if np.ptp(units):
            inputs = inputs / np.outer(units, units)
        self.inputs, input_values = _eigen(inputs)
        if self.inputs is not None:  # Only a matrix has a bias's row.
            self.inputs = self.inputs / units[:, None]
        self.outputs, output_values = _eigen(outputs)
        self._sides = input_values, output_values
        # Where no loss reaches a position, all sums are zero.
        self._eigenvalue_sums = np.outer(input_values, output_values)
        self._eigenvalue_sums /= max(count, 1.0)
        self._measured = None

    def add(self, squares):
        """Add sums of squares of gradients in the basis."""
        squares = squares.reshape(self._eigenvalue_sums.shape)
        previous = 0 if self._measured is None else self._measured
        self._measured = previous + squares

    def finish(self, samples, variables):
        """Set the eigenvalues once all samples are counted.

        Raises:
            ValueError: the damping that was given leaves some at zero, but for
                rounding.
        """
        measured = (
            self._eigenvalue_sums if self._measured is None else self._measured
        )
        self.eigenvalues = measured / samples + self._shift
        if self._is_given:
            self._require_definite(rounding_share(variables), variables)
        # No sample has a gradient along these: dividing by infinity leaves
        # them zero.
        self.eigenvalues[self.eigenvalues <= 0] = np.inf

    def _require_definite(self, share, variables):
        largest = self.eigenvalues.max()
        # Of a matrix eigenvalues are known to rounding of the largest, of a
        # diagonal to rounding of their own.
        is_deficient = any(
            values.min() <= (0.0 if basis is None else share) * values.max()
            for basis, values in zip((self.inputs, self.outputs), self._sides)
        ) or (self.eigenvalues.min() <= share**2 * largest)
        if is_deficient and not self._shift > share * largest:
            raise ValueError(
                f"The curvature of {variables[self.indices[0]].path!r} plus "
                "the damping expected to be positive definite, beyond "
                f"rounding. Received: eigenvalues from {self._shift:.3g} to "
                f"{largest:.3g}, damping {self._damping:g}. There are weights "
                "that no sample uses, or fewer samples than directions: pass "
                f"a `damping` clearly above {share * largest:.3g}, or None."
            )

    def solve(self, gradients):
        """Return the gradients of its variables over the curvature."""
        kernel, *bias = gradients
        m, order = len(kernel), self._order
        transposed = np.transpose(kernel, [0, *(1 + k for k in order)])
        columns = self._eigenvalue_sums.shape[1]
        rows = transposed.reshape(m, -1, columns)
        if bias:
            rows = np.concatenate([rows, bias[0][:, None]], 1)
        rows = _rotate(rows, self.inputs, self.outputs) / self.eigenvalues
        transposes = [
            t if t is None else t.T for t in (self.inputs, self.outputs)
        ]
        rows = _rotate(rows, *transposes).astype(kernel.dtype)
        kernel_rows = rows[:, :-1] if bias else rows
        kernel_rows = np.transpose(
            kernel_rows.reshape(transposed.shape), [0, *(1 + np.argsort(order))]
        )
        return [kernel_rows, rows[:, -1]] if bias else [kernel_rows]


def _rotate(rows, inputs, outputs):
    """Return inputsᵀ G outputs of each G, (m, i, o)."""
    if inputs is not None:
        rows = np.matmul(inputs.T, rows)
    return rows if outputs is None else np.matmul(rows, outputs)


def _eigen(matrix):
    """Return eigenvectors (None: diagonal already) and eigenvalues ≥ 0."""
    if matrix.ndim == 1:
        return None, matrix
    values, vectors = np.linalg.eigh(matrix)
    return vectors, np.maximum(values, 0)
