"""Curvature in Kronecker factors: K-FAC and EK-FAC.

The Fisher matrix of a kernel is approximated by inputs ⊗ outputs (Martens &
Grosse, arXiv 1503.05671). EK-FAC keeps the eigenvectors, and measures the
second moment of the gradients along each (George et al., arXiv 1806.03884);
for influence: Grosse et al., arXiv 2308.03296. A kernel and the bias that is
added to its products are one block, other variables are on their own.

Labels are what the model predicts: with them the mean of g gᵀ is the
Gauss-Newton matrix of these losses; with the data's own it is not (Kunstner et
al., arXiv 1905.12558). If a model is sure of most samples, a drawn label hardly
ever tells anything. So all labels count at once, with random signs.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor
from keras_pergrad.factors.base import norm_type
from keras_pergrad.functions.data_passes import with_progress
from keras_pergrad.influence import data, sides, with_bias
from keras_pergrad.influence.fisher_information import (
    FisherStatistic,
    compute_sums,
    require_finite,
)
from keras_pergrad.influence.hessian import Hessian
from keras_pergrad.influence.likelihoods import (
    KNOWN_LOSSES,
    NoLikelihood,
    likelihoods_for,
)

# One block of a Kronecker-factored curvature: a basis and eigenvalues.


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

    def __init__(self, indices, shape, axes, sums, samples, damping, penalties):
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
            self._require_definite(data.rounding_share(variables), variables)
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


# Sums over the data, of which a Kronecker-factored curvature is made.


@dataclasses.dataclass(frozen=True)
class KroneckerSums(FisherStatistic):
    """The sums for both Kronecker factors of each block."""

    def of_factors(self, factors, scale):
        """Return (inputs, outputs, count, squares, bias, axes) of each block.

        `bias` is the index of its bias, -1 without one.
        """
        del scale
        blocks = _block_factors(factors)
        return [b and _kronecker_sums(*b) for b in blocks]


@dataclasses.dataclass(frozen=True)
class EigenvalueSums(FisherStatistic):
    """The squares of the gradients in the eigenbasis of each block."""

    def of_factors(self, factors, scale, bases):
        """Return (squares,), (i, o), of each block."""
        del scale
        return [
            b and (_sum_of_squares(b[0], b[1], basis),)
            for b, basis in zip(_block_factors(factors), bases, strict=True)
        ]


def _sum_of_squares(kernel, bias, basis):
    """Return the sum of squares as a dense tensor, for embeddings, too."""
    ask = sides if bias is None else with_bias
    factor = ask.rotated(kernel, *basis)
    return tf.convert_to_tensor(factor.sum_of_squares())


def _kronecker_sums(kernel, bias, index):
    ask = sides if bias is None else with_bias
    sums = ask.kronecker(kernel)
    squares = kernel.squared_norms()
    if bias is not None:
        squares += bias.squared_norms()
    axes = tf.constant(list(sums.axes), tf.int32)
    squares = tf.reduce_sum(squares)
    return *sums[:3], squares, tf.constant(index), axes


def _block_factors(factors):
    """Return (factor, that of its bias, the bias's index) of each variable.

    Without a bias these are None and -1. None for a bias that is part of its
    kernel's block.
    """
    biases = with_bias.match_biases(factors)
    joined_biases = {k for k in biases if k is not None}
    return [
        None
        if factor is None or k in joined_biases
        else (factor, None, -1)
        if bias is None
        else (factor, factors[bias], bias)
        for k, (factor, bias) in enumerate(zip(factors, biases))
    ]


# K-FAC and EK-FAC: curvature in two Kronecker factors for each variable.


class KroneckerCurvature:
    """(F + regularisers + damping)⁻¹, block by block.

    Args:
        model, batches, verbose: as for `Hessian`.
        damping: a number; None: a tenth of a block's mean eigenvalue.
        corrected: whether eigenvalues are measured (EK-FAC).
        seed: of the random signs.
    """

    def __init__(self, model, batches, damping, corrected, seed, verbose=0):
        self._model, self._batches, self._seed = model, batches, seed
        self._verbose = verbose
        self._variables = list(model.trainable_variables)
        penalties = [_l2_curvature(v) for v in self._variables]
        self._likelihoods = self._find_likelihoods()
        self._blocks, samples = self._make_blocks(damping, penalties)
        if corrected:
            self._measure_eigenvalues()
        for block in self._blocks:
            block.finish(samples, self._variables)

    def solve(self, gradients):
        """Return (F + damping)⁻¹ g for gradients of m samples."""
        solutions = [None] * len(gradients)
        for block in self._blocks:
            for k, g in zip(
                block.indices,
                block.solve([gradients[k] for k in block.indices]),
            ):
                solutions[k] = g
        return solutions

    def _find_likelihoods(self):
        try:
            batch = next(iter(self._batches))
            return tuple(likelihoods_for(self._model, batch))
        except NoLikelihood as error:
            raise _no_likelihood_error(self._model, error) from None

    def _sums_by_batch(self, name, statistic_class, *more):
        """Yield the number of samples and the sums of each batch."""
        statistic = statistic_class(
            "kfac", self._likelihoods, True, False, True
        )
        first_row = 0
        for number, batch in enumerate(
            with_progress(self._batches, self._verbose, name)
        ):
            x, _, weight = batch
            _require_nonnegative_weights(weight, first_row)
            key = tf.constant([self._seed, number], tf.int64)
            try:
                data = x, None, weight
                sums = compute_sums(statistic, self._model, data, key, *more)
            except NoLikelihood as error:
                raise _no_likelihood_error(self._model, error) from None
            n = int(first_tensor(x).shape[0])
            require_finite(self._model, sums, first_row, n)
            first_row += n
            yield n, sums

    def _make_blocks(self, damping, penalties):
        totals, layouts, samples = None, None, 0
        for n, parts in self._sums_by_batch(
            "Kronecker factors of the curvature", KroneckerSums
        ):
            layouts = [p and [t.numpy() for t in p[4:]] for p in parts]
            # Sums over many batches, so in float64.
            parts = [
                p and [t.numpy().astype("float64") for t in p[:4]]
                for p in parts
            ]
            totals = totals or [p and [0.0] * 4 for p in parts]
            totals = [
                total and [a + b for a, b in zip(total, p)]
                for total, p in zip(totals, parts)
            ]
            samples += n
        blocks = []
        for k, (sums, layout) in enumerate(zip(totals or (), layouts or ())):
            if sums is None:
                continue
            bias, axes = int(layout[0]), layout[1].tolist()
            indices = [k] if bias < 0 else [k, bias]
            shape = self._variables[k].shape
            block_penalties = [penalties[p] for p in indices]
            blocks.append(
                Block(
                    indices,
                    shape,
                    axes,
                    sums,
                    samples,
                    damping,
                    block_penalties,
                )
            )
        return blocks, samples

    def _measure_eigenvalues(self):
        bases: list[Any] = [None] * len(self._variables)
        for block in self._blocks:
            variable = self._variables[block.indices[0]]
            sides = block.inputs, block.outputs
            bases[block.indices[0]] = [_basis(side, variable) for side in sides]
        for _, parts in self._sums_by_batch(
            "Eigenvalues of the curvature", EigenvalueSums, bases
        ):
            for block in self._blocks:
                squares = parts[block.indices[0]][0].numpy()
                block.add(squares.astype("float64"))


def _require_nonnegative_weights(weights, first_row):
    for weight in tf.nest.flatten(weights):
        if weight is None:
            continue
        negative = np.asarray(weight)
        negative = np.flatnonzero(
            negative.reshape(len(negative), -1).min(1) < 0
        )
        if negative.size:
            raise ValueError(
                "`sample_weight` expected no negative numbers, which bend the "
                f"loss the other way. Received: some for samples "
                f"{(negative[:5] + first_row).tolist()}. Use "
                "curvature='exact' or 'projected'."
            )


def _no_likelihood_error(model, error):
    return ValueError(
        "The curvature takes labels that the model predicts, and no "
        f"distribution is known for model {model.name!r}. Expected "
        f"{KNOWN_LOSSES}, and no other term. Received: {error}. Use "
        "curvature='exact' or 'projected'."
    )


def _basis(vectors, variable):
    """Return eigenvectors in the type of a variable's factors."""
    if vectors is None:
        return None
    return tf.constant(vectors, norm_type([variable]))


def _l2_curvature(variable):
    """Return the second derivative of a variable's regulariser."""
    regularizers = keras.regularizers
    regularizer = variable.regularizer
    if regularizer is None or type(regularizer) is regularizers.L1:
        return 0.0
    if type(regularizer) in (regularizers.L2, regularizers.L1L2):
        return 2 * float(regularizer.l2)
    raise ValueError(
        f"The regulariser of {variable.path!r} expected to be of Keras's L1, "
        f"L2 or L1L2. Received: {type(regularizer).__name__}, whose curvature "
        "does not go into that of Kronecker products. Use curvature='exact'."
    )


# Influence in weight space: the whole gradient of each test sample, times the
# inverse curvature, times the gradients of all training samples.


#: Entries of the test samples' gradients that are held at a time.
_MAX_HELD_ENTRIES = 2**25
#: At least this many test samples go through a model at once, if they fit.
_MIN_TEST_BATCH_SIZE = 64


class WeightSpaceInfluence:
    """Scores of one checkpoint, with a curvature of the weights.

    Args:
        model: a model with the weights of the checkpoint, in each call.
        batches: the training data, from `batches_of`.
        make_curvature: `make(model, batches, verbose)`, which returns an
            object with `solve(gradients)`.
        verbose: whether to show progress bars.
    """

    def __init__(self, model, batches, make_curvature, verbose):
        self._model, self._batches = model, batches
        self._make_curvature, self._verbose = make_curvature, verbose
        self._curvature = None

    def scores(self, make_batches):
        """Return tests · (H + damping)⁻¹ · training gradients, (m, n)."""
        curvature = self._fit()
        scores, first_row = [], 0
        for batch in make_batches(self._test_batch_size()):
            gradients = data.gradients_of(self._model, batch, first_row)
            directions = curvature.solve(gradients)
            scores.append(
                data.dots(self._model, self._batches, directions, self._verbose)
            )
            first_row += len(scores[-1])
        return np.concatenate(scores)

    def self_influence(self):
        """Return the same of each training sample with itself, (n,)."""
        curvature = self._fit()
        scores, first_row = [], 0
        for batch in with_progress(
            self._batches, self._verbose, "Self-influence"
        ):
            gradients = data.gradients_of(self._model, batch, first_row)
            solved = curvature.solve(gradients)
            rows = (
                data.flatten_gradients(gradients),
                data.flatten_gradients(solved),
            )
            scores.append(np.sum(rows[0] * rows[1], 1))
            first_row += len(scores[-1])
        return np.concatenate(scores)

    def _fit(self):
        if self._curvature is None:
            self._curvature = self._make_curvature(
                self._model, self._batches, self._verbose
            )
        return self._curvature

    def _test_batch_size(self):
        """Return the size of a training batch, or what can be held."""
        variables = self._model.trainable_variables
        size = sum(v.shape.num_elements() for v in variables)
        x, _, _ = next(iter(self._batches))
        batch_size = max(_MIN_TEST_BATCH_SIZE, int(first_tensor(x).shape[0]))
        return max(1, min(batch_size, _MAX_HELD_ENTRIES // size))


class IdentityCurvature:
    """No curvature: the gradients as they are."""

    def __init__(self, *arguments):
        del arguments

    def solve(self, gradients):
        """Return the gradients."""
        return gradients


def exact_curvature(damping):
    """Return a function that makes the exact Hessian."""

    def make(model, batches, verbose):
        first = data.gradients_of(model, next(iter(batches)))
        templates = [g if g is None else g[:1] for g in first]
        return Hessian(model, batches, templates, damping or 0.0, verbose)

    return make


def kronecker_curvature(damping, corrected, seed):
    """Return a function that makes K-FAC, or EK-FAC (`corrected`)."""

    def make(model, batches, verbose):
        return KroneckerCurvature(
            model, batches, damping, corrected, seed, verbose
        )

    return make
