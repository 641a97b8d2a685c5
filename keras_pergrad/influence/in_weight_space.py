"""Influence from whole gradients: each test sample's, solved, met with all."""

import numpy as np

from keras_pergrad.data_passes import shown
from keras_pergrad.influence import sample_passes
from keras_pergrad.influence.hessian import Hessian
from keras_pergrad.influence.kronecker_curvature import KroneckerCurvature

#: Entries of the test samples' gradients that are held at a time.
_HELD = 2**25
_MOST_TESTS = 64


class InWeightSpace:
    """Scores of one checkpoint, with a curvature of the weights.

    Args:
        model: a model with the weights of the checkpoint, in each call.
        batches: the training data, from `batches_of`.
        make_curvature: `make(model, batches, like, verbose)`, which returns
            an object with `solve(gradients)`.
        verbose: whether to show progress bars.
    """

    def __init__(self, model, batches, make_curvature, verbose):
        self._model, self._batches = model, batches
        self._make, self._verbose = make_curvature, verbose
        self._curvature = None

    def scores(self, tests):
        """Return tests · (H + damping)⁻¹ · training gradients, (m, n)."""
        curvature, size = self._fitted()
        count = max(1, min(_MOST_TESTS, _HELD // size))
        found, first = [], 0
        for batch in tests(count):
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
        curvature, _ = self._fitted()
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
            like = _first_gradient(self._model, self._batches)
            self._size = sum(g.size for g in like if g is not None)
            self._curvature = self._make(
                self._model, self._batches, like, self._verbose
            )
        return self._curvature, self._size


def _first_gradient(model, batches):
    gradients = sample_passes.gradients_of(model, next(iter(batches)))
    return [g if g is None else g[:1] for g in gradients]


class Identity:
    """No curvature: the gradients as they are."""

    def __init__(self, *given):
        del given

    def solve(self, gradients):
        """Return the gradients."""
        return gradients


def exact(damping):
    """Return what makes the true Hessian."""

    def make(model, batches, like, verbose):
        return Hessian(model, batches, like, damping or 0.0, verbose)

    return make


def kronecker(damping, corrected, seed):
    """Return what makes K-FAC, or EK-FAC (`corrected`)."""

    def make(model, batches, like, verbose):
        del like
        return KroneckerCurvature(
            model, batches, damping, corrected, seed, verbose
        )

    return make
