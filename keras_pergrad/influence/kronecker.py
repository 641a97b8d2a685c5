"""Curvature in Kronecker factors: K-FAC and EK-FAC.

The Fisher matrix of a kernel is approximated by inputs ⊗ outputs (Martens &
Grosse, arXiv 1503.05671). EK-FAC keeps the eigenvectors, and measures the
second moment of the gradients along each (George et al., arXiv 1806.03884);
for influence: Grosse et al., arXiv 2308.03296. A kernel and the bias that is
added to its products are one block, other variables are on their own.

Labels are what the model predicts: with them the mean of g gᵀ is the
Gauss-Newton matrix of these losses; with the data's own it is not (Kunstner et
al., arXiv 1905.12558). Of a model that is sure of most samples hardly one drawn
label says anything, so all count at once, with random signs.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.float_types import norm_type
from keras_pergrad.factors.with_bias import WithBias, biases_of
from keras_pergrad.functions.data_passes import shown
from keras_pergrad.influence import data
from keras_pergrad.influence.fisher_information import (
    Question,
    asked,
    require_finite,
)
from keras_pergrad.influence.hessian import Hessian
from keras_pergrad.influence.likelihoods import (
    KNOWN,
    NoLikelihood,
    likelihoods_for,
)
from keras_pergrad.keras_internals.data.batches import first_tensor
from keras_pergrad.keras_internals.losses.compiled import is_overwritten

# One block of a Kronecker-factored curvature: a basis and eigenvalues.


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


# Sums over the data, of which a Kronecker-factored curvature is made.


@dataclasses.dataclass(frozen=True)
class TwoSides(Question):
    """The two sides of each block."""

    def of_factors(self, factors, scale):
        """Return (left, right, count, squares, bias or -1, axes) of each."""
        del scale
        blocks = _blocks(factors)
        return [b and _sides_of(*b) for b in blocks]


@dataclasses.dataclass(frozen=True)
class Corrections(Question):
    """The squares of gradients in a basis."""

    def of_factors(self, factors, scale, bases):
        """Return (squares,), (i, o), of each block."""
        del scale
        return [
            b and (_squares(b[0].rotated(*basis)),)
            for b, basis in zip(_blocks(factors), bases, strict=True)
        ]


def _squares(factor):
    """Return the sum of squares, of a table's rows, too, as one tensor."""
    return tf.convert_to_tensor(factor.sum_of_squares())


def _sides_of(factor, bias):
    found = factor.kronecker()
    squares = tf.reduce_sum(factor.squared_norms())
    axes = tf.constant(list(found.axes), tf.int32)
    return *found[:3], squares, tf.constant(bias), axes


def _blocks(factors):
    """Return (factor, place of its bias or -1) of each, None within others."""
    biases = biases_of(factors)
    taken = {k for k in biases if k is not None}
    return [
        None
        if factor is None or k in taken
        else (factor, -1)
        if bias is None
        else (WithBias(factor, factors[bias]), bias)
        for k, (factor, bias) in enumerate(zip(factors, biases))
    ]


# K-FAC and EK-FAC: curvature in two parts for each variable.
#
# The Fisher matrix of a kernel is approximated by inputs ⊗ outputs (Martens &
# Grosse, arXiv 1503.05671). EK-FAC keeps the eigenvectors, and measures the
# second moment of the gradients along each (George et al., arXiv 1806.03884);
# for influence: Grosse et al., arXiv 2308.03296. A kernel and the bias that
# is added to its products are one block, other variables are on their own.
#
# Labels are what the model predicts: with them the mean of g gᵀ is the
# Gauss-Newton matrix of these losses; with the data's own it is not (Kunstner
# et al., arXiv 1905.12558). Of a model that is sure of most samples hardly
# one drawn label says anything, so all count at once, with random signs.


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
        self._variables = [
            v for v in model.trainable_variables if not is_overwritten(v)
        ]
        penalties = [_l2(v) for v in self._variables]
        self._likelihoods = self._known()
        self._blocks, samples = self._two_sides(damping, penalties)
        if corrected:
            self._correct()
        for block in self._blocks:
            block.finish(samples)

    def solve(self, gradients):
        """Return (F + damping)⁻¹ g for gradients of m samples."""
        variables = self._model.trainable_variables
        places = [k for k, v in enumerate(variables) if not is_overwritten(v)]
        found = [None] * len(gradients)
        for block in self._blocks:
            own = [places[k] for k in block.places]
            for k, g in zip(own, block.solve([gradients[k] for k in own])):
                found[k] = g
        return found

    def _known(self):
        try:
            batch = next(iter(self._batches))
            return tuple(likelihoods_for(self._model, batch))
        except NoLikelihood as error:
            raise _refused(self._model, error) from None

    def _passes(self, sums, *more):
        """Yield the number of samples and the sums of each batch."""
        question = sums("kfac", self._likelihoods, True, False, True)
        first = 0
        for number, batch in enumerate(shown(self._batches, self._verbose)):
            x, _, weight = batch
            _require_weights(weight, first)
            key = tf.constant([self._seed, number], tf.int64)
            try:
                data = x, None, weight
                answers = asked(question, self._model, data, key, *more)
            except NoLikelihood as error:
                raise _refused(self._model, error) from None
            n = int(first_tensor(x).shape[0])
            require_finite(self._model, answers, first, n)
            first += n
            variables = self._model.trainable_variables
            yield (
                n,
                [
                    a
                    for a, v in zip(answers, variables)
                    if not is_overwritten(v)
                ],
            )

    def _two_sides(self, damping, penalties):
        totals, fixed, samples = None, None, 0
        for n, parts in self._passes(TwoSides):
            fixed = [p and [t.numpy() for t in p[4:]] for p in parts]
            parts = [
                p and [t.numpy().astype("float64") for t in p[:4]]
                for p in parts
            ]
            totals = totals or [p and [0.0] * 4 for p in parts]
            totals = [
                t and [a + b for a, b in zip(t, p)]
                for t, p in zip(totals, parts)
            ]
            samples += n
        blocks = []
        for k, (sums, known) in enumerate(zip(totals or (), fixed or ())):
            if sums is None:
                continue
            bias, axes = int(known[0]), known[1].tolist()
            places = [k] if bias < 0 else [k, bias]
            shape = self._variables[k].shape
            own = [penalties[p] for p in places]
            blocks.append(
                Block(places, shape, axes, sums, samples, damping, own)
            )
        return blocks, samples

    def _correct(self):
        bases: list[Any] = [None] * len(self._variables)
        for block in self._blocks:
            variable = self._variables[block.places[0]]
            sides = block.inputs, block.outputs
            bases[block.places[0]] = [_basis(side, variable) for side in sides]
        for _, parts in self._passes(Corrections, bases):
            for block in self._blocks:
                squares = parts[block.places[0]][0].numpy()
                block.add(squares.astype("float64"))


def _require_weights(weights, first):
    for weight in tf.nest.flatten(weights):
        if weight is None:
            continue
        bad = np.asarray(weight)
        bad = np.flatnonzero(bad.reshape(len(bad), -1).min(1) < 0)
        if bad.size:
            raise ValueError(
                "`sample_weight` expected no negative numbers, which bend the "
                f"loss the other way. Received: some for samples "
                f"{(bad[:5] + first).tolist()}. Use curvature='exact' or "
                "'projected'."
            )


def _refused(model, error):
    return ValueError(
        "The curvature takes labels that the model predicts, and no "
        f"distribution is known for model {model.name!r}. Expected {KNOWN}, "
        f"and no other term. Received: {error}. Use curvature='exact' or "
        "'projected'."
    )


def _basis(vectors, variable):
    """Return eigenvectors in the type of a variable's factors."""
    if vectors is None:
        return None
    return tf.constant(vectors, norm_type([variable]))


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


# Influence from whole gradients: each test sample's, solved, met with all.


#: Entries of the test samples' gradients that are held at a time.
_HELD = 2**25
#: So many test samples go through any model at once.
_FEW_TESTS = 64


class InWeightSpace:
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
        self._make, self._verbose = make_curvature, verbose
        self._curvature = None

    def scores(self, tests):
        """Return tests · (H + damping)⁻¹ · training gradients, (m, n)."""
        curvature = self._fitted()
        found, first = [], 0
        for batch in tests(self._tests_at_once()):
            gradients = data.gradients_of(self._model, batch, first)
            directions = curvature.solve(gradients)
            found.append(
                data.dots(self._model, self._batches, directions, self._verbose)
            )
            first += len(found[-1])
        return np.concatenate(found)

    def self_influence(self):
        """Return the same of each training sample with itself, (n,)."""
        curvature = self._fitted()
        found, first = [], 0
        for batch in shown(self._batches, self._verbose):
            gradients = data.gradients_of(self._model, batch, first)
            solved = curvature.solve(gradients)
            rows = data.flat(gradients), data.flat(solved)
            found.append(np.sum(rows[0] * rows[1], 1))
            first += len(found[-1])
        return np.concatenate(found)

    def _fitted(self):
        if self._curvature is None:
            self._curvature = self._make(
                self._model, self._batches, self._verbose
            )
        return self._curvature

    def _tests_at_once(self):
        """As many as there are in a training batch, if they can be held."""
        variables = self._model.trainable_variables
        size = sum(v.shape.num_elements() for v in variables)
        x, _, _ = next(iter(self._batches))
        most = max(_FEW_TESTS, int(first_tensor(x).shape[0]))
        return max(1, min(most, _HELD // size))


class Identity:
    """No curvature: the gradients as they are."""

    def __init__(self, *given):
        del given

    def solve(self, gradients):
        """Return the gradients."""
        return gradients


def exact(damping):
    """Return what makes the true Hessian."""

    def make(model, batches, verbose):
        first = data.gradients_of(model, next(iter(batches)))
        like = [g if g is None else g[:1] for g in first]
        return Hessian(model, batches, like, damping or 0.0, verbose)

    return make


def kronecker(damping, corrected, seed):
    """Return what makes K-FAC, or EK-FAC (`corrected`)."""

    def make(model, batches, verbose):
        return KroneckerCurvature(
            model, batches, damping, corrected, seed, verbose
        )

    return make
