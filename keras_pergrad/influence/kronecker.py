"""Curvature in Kronecker factors: K-FAC and EK-FAC.

The Fisher matrix of a kernel is approximated by inputs ⊗ outputs (Martens &
Grosse, arXiv 1503.05671). EK-FAC keeps the eigenvectors, and measures the
second moment of the gradients along each (George et al., arXiv 1806.03884);
for influence: Grosse et al., arXiv 2308.03296. A kernel and the bias that is
added to its products are one block, other variables are on their own.

Labels are what the model predicts: with them the mean of g gᵀ is the
Gauss-Newton matrix of these losses; with the data's own it is not (Kunstner et
al., arXiv 1905.12558). If a model is sure of most samples, a drawn label hardly
ever adds anything. So all labels count at once, with random signs.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor
from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.functions.data_passes import with_progress
from keras_pergrad.influence import sides, with_bias
from keras_pergrad.influence.fisher_sums import (
    FisherStatistic,
    add_sums,
    compute_sums,
    require_finite,
)
from keras_pergrad.influence.kronecker_block import Block
from keras_pergrad.influence.likelihoods import (
    KNOWN_LOSSES,
    NoLikelihood,
    likelihoods_for,
)


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


class KroneckerCurvature:
    """(F + regularisers + damping)⁻¹, block by block.

    Args:
        model: a compiled and built model.
        batches: the training data, from `batches_of`.
        damping: a number; None: a tenth of a block's mean eigenvalue.
        corrected: whether eigenvalues are measured (EK-FAC).
        seed: of the random signs.
        verbose: whether to show progress bars.
    """

    def __init__(self, model, batches, damping, *, corrected, seed, verbose=0):
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
            "kfac", self._likelihoods, True, training=False, as_loss=True
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
                sums = compute_sums(
                    statistic, self._model, data, *more, seed=key
                )
            except NoLikelihood as error:
                raise _no_likelihood_error(self._model, error) from None
            n = int(first_tensor(x).shape[0])
            require_finite(self._model, sums, first_row, n=n)
            first_row += n
            yield n, sums

    def _make_blocks(self, damping, penalties):
        totals: list[Any] = []
        samples = 0
        for n, parts in self._sums_by_batch(
            "Kronecker factors of the curvature", KroneckerSums
        ):
            parts = tf.nest.map_structure(_in_double, parts)
            totals = add_sums(totals, parts) if totals else parts
            samples += n
        blocks = []
        for k, total in enumerate(totals):
            if total is None:
                continue
            *sums, bias, axes = total
            indices = [k] if bias < 0 else [k, int(bias)]
            blocks.append(
                Block(
                    indices,
                    self._variables[k].shape,
                    axes.tolist(),
                    sums=sums,
                    samples=samples,
                    damping=damping,
                    penalties=[penalties[p] for p in indices],
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


def _in_double(tensor):
    """Return a part of sums over many batches as an array; None stays."""
    if tensor is None:
        return None
    return tensor.numpy().astype("float64" if tensor.dtype.is_floating else int)


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
