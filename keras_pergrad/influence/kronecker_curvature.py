"""K-FAC and EK-FAC: curvature in two parts for each variable.

The Fisher matrix of a kernel is approximated by inputs ⊗ outputs (Martens &
Grosse, arXiv 1503.05671). EK-FAC keeps the eigenvectors, and measures the
second moment of the gradients along each (George et al., arXiv 1806.03884);
for influence: Grosse et al., arXiv 2308.03296. Variables are on their own.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.data_passes import run, shown
from keras_pergrad.influence.sampled_labels import drawn
from keras_pergrad.keras_internals.overwritten import is_overwritten

#: Of the mean eigenvalue of a variable.
_SHARE = 0.1


class KroneckerCurvature:
    """(F + regularisers + damping)⁻¹, variable by variable.

    Args:
        model, batches, verbose: as for `Hessian`.
        damping: a number; None: a tenth of a variable's mean eigenvalue.
        corrected: whether eigenvalues are measured (EK-FAC).
        seed: of the targets that are drawn.
    """

    def __init__(self, model, batches, damping, corrected, seed, verbose=0):
        self._model, self._batches, self._seed = model, batches, seed
        self._verbose = verbose
        penalties = [_l2(v) for v in model.trainable_variables]
        self._blocks, samples = self._two_parts()
        if corrected:
            self._correct()
        for block, penalty in zip(self._blocks, penalties):
            if block is not None:
                block.finish(samples, damping, penalty)

    def solve(self, gradients):
        """Return (F + damping)⁻¹ g for gradients of m samples."""
        return [
            None if g is None or block is None else block.solve(g)
            for g, block in zip(gradients, self._blocks, strict=True)
        ]

    def _passes(self, what, more):
        for number, batch in enumerate(shown(self._batches, self._verbose)):
            batch = drawn(self._model, batch, (self._seed, number))
            data = (*batch, None, 0)
            n = int(tf.shape(tf.nest.flatten(batch[0])[0])[0])
            yield n, *run(what, self._model, data, "vectorized", False, more)

    def _two_parts(self):
        totals, axes, samples = None, None, 0
        for n, parts in self._passes(_TWO_PARTS, [tf.zeros([])]):
            axes = [p and p[3].numpy().tolist() for p in parts]
            parts = [p and _scaled(p, n) for p in parts]
            if totals is None:
                totals = parts
            else:
                totals = [
                    t and [a + b for a, b in zip(t, p)]
                    for t, p in zip(totals, parts)
                ]
            samples += n
        variables = self._model.trainable_variables
        blocks = [
            t and _Block(v.shape, a, *t)
            for v, a, t in zip(variables, axes or (), totals or ())
        ]
        return blocks, samples

    def _correct(self):
        bases = [
            [_basis(b and b.inputs, v), _basis(b and b.outputs, v)]
            for v, b in zip(self._model.trainable_variables, self._blocks)
            if not is_overwritten(v)
        ]
        for n, parts in self._passes(_ROTATED, bases):
            for block, part in zip(self._blocks, parts):
                if block is not None:
                    squares = tf.convert_to_tensor(part).numpy()
                    block.add(squares.astype("float64") * n**2)


class _Block:
    """The curvature of one variable: a basis, and eigenvalues (i, o).

    Attributes:
        inputs, outputs: orthogonal matrices, or None: the basis as it is.
        values: the eigenvalues.
    """

    def __init__(self, shape, axes, inputs, outputs, count):
        others = [k for k in range(len(shape)) if k not in axes]
        self._order, self._shape = [*axes, *others], list(shape)
        self.inputs, a = _eigen(inputs)
        self.outputs, b = _eigen(outputs)
        self._sums = np.outer(a, b) / count
        self._measured = None

    def add(self, squares):
        """Add sums of squares of gradients in the basis."""
        squares = squares.reshape(self._sums.shape)
        before = 0 if self._measured is None else self._measured
        self._measured = before + squares

    def finish(self, samples, damping, penalty):
        """Set the eigenvalues once all samples are counted."""
        measured = self._sums if self._measured is None else self._measured
        values = measured / samples
        if damping is None:
            damping = _SHARE * (values.mean() + penalty)
        self.values = values + penalty + damping
        # No sample bends these, and a gradient of zero stays zero.
        self.values[self.values <= 0] = np.inf

    def solve(self, gradients):
        """Return the gradients over the curvature, (m, *shape)."""
        m, order = len(gradients), self._order
        moved = np.transpose(gradients, [0, *(1 + k for k in order)])
        rows = moved.reshape(m, *self._sums.shape)
        rows = _turned(rows, self.inputs, self.outputs) / self.values
        back = [t if t is None else t.T for t in (self.inputs, self.outputs)]
        rows = _turned(rows, *back).reshape(moved.shape)
        return np.transpose(rows, [0, *(1 + np.argsort(order))]).astype(
            gradients.dtype
        )


def _turned(rows, inputs, outputs):
    """Return inputsᵀ G outputs of each G, (m, i, o)."""
    if inputs is not None:
        rows = np.matmul(inputs.T, rows)
    return rows if outputs is None else np.matmul(rows, outputs)


def _basis(vectors, variable):
    """Return eigenvectors in the type of a variable's factors."""
    if vectors is None:
        return None
    is_wide = variable.value.dtype == tf.float64
    return tf.constant(vectors, tf.float64 if is_wide else tf.float32)


def _eigen(matrix):
    """Return eigenvectors (None: the axes) and eigenvalues, none negative."""
    if matrix.ndim == 1:
        return None, matrix
    values, vectors = np.linalg.eigh(matrix)
    return vectors, np.maximum(values, 0)


def _scaled(part, n):
    """Return inputs, outputs and count of gradients, not of contributions."""
    inputs, outputs, count = (p.numpy().astype("float64") for p in part[:3])
    return [inputs, outputs * n**2, count]


def _l2(variable):
    """Return the second derivative of a variable's regulariser."""
    kinds = keras.regularizers
    regularizer = variable.regularizer
    if regularizer is None or type(regularizer) is kinds.L1:
        return 0.0
    if type(regularizer) in (kinds.L2, kinds.L1L2):
        return 2 * float(regularizer.l2)
    raise ValueError(
        f"The regulariser of {variable.path!r} expected to be of Keras's L1, "
        f"L2 or L1L2. Received: {type(regularizer).__name__}, whose curvature "
        "does not go into that of Kronecker products. Use curvature='exact'."
    )


class _TwoParts:
    def of_factors(self, factors, n, more):
        """Return (inputs, outputs, count, axes) of each variable."""
        del n, more
        return [f and _parts_of(f.kronecker()) for f in factors]


def _parts_of(found):
    axes = tf.constant(list(found.axes), tf.int32)
    return found.inputs, found.outputs, found.count, axes


class _Rotated:
    def of_factors(self, factors, n, bases):
        """Return the sums of squares in the basis, (i, o), of each variable."""
        del n
        return [
            f and f.rotated(*basis).sum_of_squares()
            for f, basis in zip(factors, bases, strict=True)
        ]


_TWO_PARTS, _ROTATED = _TwoParts(), _Rotated()
