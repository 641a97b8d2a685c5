"""K-FAC and EK-FAC: curvature in two parts for each variable.

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

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.float_types import norm_type
from keras_pergrad.data_passes import shown
from keras_pergrad.fisher_information.likelihoods import (
    KNOWN,
    NoLikelihood,
    likelihoods_for,
)
from keras_pergrad.fisher_information.question import asked, require_finite
from keras_pergrad.influence.kronecker_block import Block
from keras_pergrad.influence.kronecker_sums import Corrections, TwoSides
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.overwritten import is_overwritten


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
