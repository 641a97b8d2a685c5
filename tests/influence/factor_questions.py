"""What influence asks of every factor, with the answers in NumPy."""

import functools

import numpy as np

from keras_pergrad import factors
from keras_pergrad.influence import projected_factors
from keras_pergrad.influence import projection_sides as side
from keras_pergrad.influence import sides as asked
from keras_pergrad.influence.projected_factors import project
from keras_pergrad.influence.projection import Projection
from keras_pergrad.influence.sides import axes as left_axes
from keras_pergrad.influence.sides import kronecker, rotated
from tests.factors.cases import SIDES, N
from tests.factors.questions import LIMITS, Question, by_chunks, patched


def questions(name, factor, each):
    """Return all questions.

    Args:
        name: of a case.
        factor: its factor, which is not changed.
        each: its gradients, written out.
    """
    return [
        *_of_kronecker(name, factor, each),
        *_of_rotations(name, each),
        *_of_projections(each),
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
        ("to 6 of a wide kernel", 6, WIDE),
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


def _of_kronecker(name, factor, each):
    axes = SIDES.get(name, ())

    def ask(factor):
        found = kronecker(factor)
        assert found.axes == left_axes(factor) == axes
        return found[:3]

    if name in SIDES:
        left, right = sides(name, factor)
        # They are the sides of the gradients.
        parts = (np.reshape(t, (N, -1, t.shape[-1])) for t in (left, right))
        products = np.einsum("nti,nto->nio", *parts)
        np.testing.assert_allclose(products, matrices_of(each, axes), **LIMITS)
        # Of several positions those count that a loss reaches.
        counted = right.any(-1) | (len(right) == N)
        left = left * counted[:, None]
        inputs, outputs, count = left.T @ left, right.T @ right, counted.sum()
        if isinstance(factor, factors.Rows):
            inputs = np.diag(inputs)
    else:
        flat = each.reshape(N, -1)
        inputs, outputs, count = np.ones([1, 1]), flat.T @ flat, 1
        assert len(outputs) <= asked.FULL
        diagonal = inputs, np.diag(outputs), count
        small = ((asked, "FULL", 0),)
        yield Question("diagonal", ask, diagonal, patches=small)
    right, chunks = (inputs, outputs, count), by_chunks(each, 1)
    yield Question("kronecker", ask, right)
    yield Question("kronecker by chunks", ask, right, patches=chunks)


def sides(name, factor):
    """Return all a and all b, with the variable's axes in their order."""
    if isinstance(factor, factors.Rows):
        a = np.eye(5)[np.asarray(factor.ids).ravel()]
        return a, np.asarray(factor.dz).reshape(len(a), -1)
    if isinstance(factor, factors.Patches):
        small = np.asarray(factor.small)
        return _windows(factor), small.reshape(-1, small.shape[-1])
    shape = np.array(factor.shape)
    before = shape if factor.perm is None else factor.unpermuted
    order = range(len(shape)) if factor.perm is None else factor.perm
    found = []
    count = len(SIDES[name])
    for tensor, places in (
        (factor.x, range(count)),
        (factor.dz, range(count, len(shape))),
    ):
        rows = np.asarray(tensor).reshape(-1, tensor.shape[-1])
        apart = rows.reshape(-1, *(before[k] for k in places))
        # Where each of these axes stands in the variable.
        back = [list(order).index(k) for k in places]
        apart = apart.transpose([0, *(k + 1 for k in np.argsort(back))])
        found.append(apart.reshape(len(rows), -1))
    return found


def _windows(factor):
    """Return the pixels of each window, by slices of NumPy."""
    w = factor.windows
    padded = np.pad(factor.big, [(0, 0), (w.before[0], w.after[0]), (0, 0)])
    starts = w.strides[0] * np.arange(w.count)
    taps = w.dilation[0] * np.arange(w.kernel[0])
    found = padded[:, starts[:, None] + taps]
    return found.reshape(N * w.count, -1)


def matrices_of(each, axes):
    """Return gradients as (n, axes on the left, others)."""
    count = len(axes)
    turned = np.moveaxis(each, [k + 1 for k in axes], range(1, count + 1))
    left = np.prod(turned.shape[1 : count + 1], dtype=int)
    return turned.reshape(len(each), left, -1)


def _of_rotations(name, each):
    matrices = matrices_of(each, SIDES.get(name, ()))
    rng = np.random.default_rng(3)
    u = rng.normal(size=(matrices.shape[1], 3))
    v = rng.normal(size=(matrices.shape[2], 2))
    for turned, sides, expected in (
        ("nothing", (None, None), matrices),
        ("inputs", (u, None), u.T @ matrices),
        ("outputs", (None, v), matrices @ v),
        ("both", (u, v), u.T @ matrices @ v),
    ):
        right = np.square(expected).sum(0)
        for how, patches in (
            ("rotated", ()),
            ("rotated by chunks", by_chunks(expected, 1)),
        ):
            yield Question(
                f"squares with {turned} {how}",
                lambda f, sides=sides: rotated(f, *sides).sum_of_squares(),
                right,
                patches=patches,
            )
        yield Question(
            f"gradients with {turned} rotated",
            lambda f, sides=sides: rotated(f, *sides).materialize(),
            expected,
        )
