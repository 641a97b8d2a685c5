"""Influence in weight space: gradients, and the inverse of the curvature.

The whole gradient of each test sample, times the inverse curvature, times the
gradients of all training samples.
"""

import functools

import numpy as np

from keras_pergrad.common.batches import first_tensor
from keras_pergrad.functions.data_passes import with_progress
from keras_pergrad.influence.gradient_products import (
    dots,
    flatten_gradients,
    gradients_of,
)
from keras_pergrad.influence.hessian import Hessian
from keras_pergrad.influence.kronecker import KroneckerCurvature

#: Entries of the test samples' gradients that are held at a time.
_MAX_HELD_ENTRIES = 2**25
#: At least this many test samples go through a model at once, if they fit.
_MIN_TEST_BATCH_SIZE = 64


class WeightSpaceInfluence:
    """Scores of one checkpoint, whose weights the model has in each call."""

    def __init__(self, model, batches, kind, *, damping, seed, verbose):
        self._model, self._batches = model, batches
        self._kind, self._damping, self._seed = kind, damping, seed
        self._verbose = verbose

    def scores(self, make_batches):
        """Return tests · (H + damping)⁻¹ · training gradients, (m, n)."""
        curvature = self._curvature
        scores, first_row = [], 0
        for batch in make_batches(self._test_batch_size()):
            gradients = gradients_of(self._model, batch, first_row)
            products = dots(
                self._model,
                self._batches,
                curvature.solve(gradients),
                verbose=self._verbose,
            )
            scores.append(products)
            first_row += len(scores[-1])
        return np.concatenate(scores)

    def self_influence(self):
        """Return the same of each training sample with itself, (n,)."""
        curvature = self._curvature
        scores, first_row = [], 0
        for batch in with_progress(
            self._batches, self._verbose, "Self-influence"
        ):
            gradients = gradients_of(self._model, batch, first_row)
            solved = flatten_gradients(curvature.solve(gradients))
            scores.append(np.sum(flatten_gradients(gradients) * solved, 1))
            first_row += len(scores[-1])
        return np.concatenate(scores)

    @functools.cached_property
    def _curvature(self):
        """The curvature at the weights of the checkpoint."""
        if self._kind == "none":
            return IdentityCurvature()
        if self._kind == "exact":
            return Hessian(
                self._model,
                self._batches,
                damping=self._damping or 0.0,
                verbose=self._verbose,
            )
        return KroneckerCurvature(
            self._model,
            self._batches,
            self._damping,
            corrected=self._kind == "ekfac",
            seed=self._seed,
            verbose=self._verbose,
        )

    def _test_batch_size(self):
        """Return the size of a training batch, or what can be held."""
        variables = self._model.trainable_variables
        size = sum(v.shape.num_elements() for v in variables)
        x, _, _ = next(iter(self._batches))
        batch_size = max(_MIN_TEST_BATCH_SIZE, int(first_tensor(x).shape[0]))
        return max(1, min(batch_size, _MAX_HELD_ENTRIES // size))


class IdentityCurvature:
    """No curvature: the gradients as they are."""

    def solve(self, gradients):
        """Return the gradients."""
        return gradients
