"""What influence asks of every factor, with the answers in NumPy."""

import functools

import numpy as np

from keras_pergrad.influence import projected_factors
from keras_pergrad.influence import projection as side
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import Projection
from tests.factors.cases import N
from tests.factors.questions import Question, patched


def questions(name, factor, each):
    """Return all questions.

    Args:
        name: of a case.
        factor: its factor, which is not changed.
        each: its gradients, written out.
    """
    found = [*_of_projections(each)]
    return found + [
        one._replace(name=f"{one.name} of a wide kernel", patches=WIDE)
        for one in found
        if one.name == "projection to 6"
    ]


#: Numbers of projections: all entries, few of both sides, fewer, one.
SIZES = (10000, 11, 6, 1)
#: As of kernels so wide that no gradient is held.
WIDE = ((projected_factors, "HELD", 0),)


def matrix(projection):
    """Return the map, (entries, size), by the gradients of each entry."""
    entries = int(np.prod(projection.shape, dtype=int))
    each = np.eye(entries).reshape(-1, *projection.shape)
    return projection.of_gradients(each).numpy()


@functools.cache
def _projection(shape, size, patches=()):
    """Return a projection and its matrix."""
    with patched(patches):
        projection = Projection(shape, size, seed=1)
        assert 1 <= projection.size <= size
        return projection, matrix(projection)


def _of_projections(each):
    long = ((side, "_LONG", 0),)
    kinds = [(f"to {size}", size, ()) for size in SIZES]
    kinds += [
        ("of long sides", 6, long),
        ("of large matrices", 6, (*long, (side, "_LARGE", 0))),
    ]
    for name, size, patches in kinds:
        projection, right = _projection(each.shape[1:], size, patches)
        yield Question(
            f"projection {name}",
            lambda f, projection=projection: project(f, projection),
            each.reshape(N, -1) @ right,
            patches=patches,
        )
