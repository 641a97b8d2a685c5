"""Influence from whole gradients: each test sample's, solved, met with all."""

import numpy as np

from keras_pergrad.data_passes import shown
from keras_pergrad.influence import sample_passes
from keras_pergrad.influence.hessian import Hessian
from keras_pergrad.influence.kronecker_curvature import KroneckerCurvature
from keras_pergrad.keras_internals.batches import first_tensor

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
            gradients = sample_passes.gradients_of(self._model, batch, first)
            directions = curvature.solve(gradients)
            found.append(
                sample_passes.dots(
                    self._model, self._batches, directions, self._verbose
                )
            )
            first += len(found[-1])
        return np.concatenate(found)

    def self_influence(self):
        """Return the same of each training sample with itself, (n,)."""
        curvature = self._fitted()
        found, first = [], 0
        for batch in shown(self._batches, self._verbose):
            gradients = sample_passes.gradients_of(self._model, batch, first)
            solved = curvature.solve(gradients)
            rows = sample_passes.flat(gradients), sample_passes.flat(solved)
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
        first = sample_passes.gradients_of(model, next(iter(batches)))
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
