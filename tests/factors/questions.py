"""What every factor is asked, with the answers of its gradients in NumPy."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors import base, outer
from tests.factors.cases import (
    ALL,
    HELD,
    SIDES,
    WEIGHTS,
    N,
    blanked,
    dense,
    gradients,
    holding,
    without_first,
)

LIMITS = {"rtol": 1e-10, "atol": 1e-10}


class Question(NamedTuple):
    """What is asked of a factor.

    Attributes:
        name: for messages, and to choose it.
        ask: a function of the factor; it returns a tensor, or several.
        right: the array, or arrays.
        atol: how far an entry may be off, besides 1e-10 of itself.
        patches: constants that force a branch: (module, name, value).
    """

    name: str
    ask: Callable[[Any], Any]
    right: Any
    atol: float = 1e-10
    patches: tuple = ()

    def answer(self, factor):
        """Return a list of tensors."""
        with patched(self.patches):
            found = self.ask(factor)
        found = found if isinstance(found, (tuple, list)) else [found]
        return [tf.convert_to_tensor(one) for one in found]

    def check(self, found, where):
        """Compare what `answer` returned."""
        several = isinstance(self.right, (tuple, list))
        rights = self.right if several else [self.right]
        for one, right in zip(found, rights, strict=True):
            message = f"{self.name}, {where}"
            assert one.shape == np.shape(right), message
            np.testing.assert_allclose(
                one, right, rtol=1e-10, atol=self.atol, err_msg=message
            )


@contextlib.contextmanager
def patched(patches):
    """Set constants of modules for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for one in patches:
            patch.setattr(*one)
        yield


def questions(name, factor, each):
    """Return all questions but those of pairs.

    Args:
        name: of a case.
        factor: its factor, which is not changed.
        each: its gradients, written out.
    """
    norms = np.square(each).reshape(N, -1).sum(1)
    found = [
        *_of_sums(each),
        *_of_products(each),
        *_of_kronecker(name, factor, each),
        *_of_rotations(name, each),
        Question("pairs", lambda f: f.gram(), _pairs(each, each)),
        Question("norms", lambda f: f.squared_norms(), norms, 0),
    ]
    # As of kernels so wide that no gradient is held.
    wide = ((outer, "HELD", 0),)
    return found + [
        one._replace(name=f"{one.name} of a wide kernel", patches=wide)
        for one in found
        if one.name in ("pairs", "norms")
    ]


def _of_sums(each):
    for weights in (None, WEIGHTS):
        scale = np.ones(N) if weights is None else weights
        yield Question(
            "sum" if weights is None else "weighted sum",
            lambda f, w=weights: f.weighted_sum(w),
            np.tensordot(scale, each, 1),
            1e-12,
        )
    total = np.square(each.sum(0)).sum()
    yield Question(
        "norm of the sum", lambda f: f.squared_norm_of_sum(), total, 0
    )


def _of_products(each):
    axes = tuple(range(1, each.ndim))
    direction = np.random.default_rng(7).normal(size=each.shape[1:])
    directions = [direction, tf.constant(direction, tf.float64)]
    if direction.ndim:
        rows = np.array([1, 0, 1]) % len(direction)
        directions.append(
            tf.IndexedSlices(tf.constant(direction[rows]), rows, each.shape[1:])
        )
    for one in directions:
        yield Question(
            f"product with {type(one).__name__}",
            lambda f, one=one: f.dot(one),
            (each * dense(one)).sum(axes),
        )
    yield Question(
        "product with its sum",
        lambda f: f.dot(f.weighted_sum(None)),
        (each * each.sum(0)).sum(axes),
    )
    right = np.square(each).sum(0)
    yield Question("squares", _squares, right)
    for samples in (1, N - 1):  # The last chunk is full, or has a rest.
        yield Question(
            f"squares by chunks of {samples}",
            _squares,
            right,
            patches=by_chunks(each, samples),
        )


def by_chunks(each, samples):
    """Return what has so many samples held at once."""
    return ((outer, "HELD_AT_ONCE", samples * each[0].size),)


def _squares(factor):
    found = factor.sum_of_squares()
    assert isinstance(found, type(factor.weighted_sum(None)))
    return found


def _of_kronecker(name, factor, each):
    axes = SIDES.get(name, ())

    def ask(factor):
        found = factor.kronecker()
        assert found.axes == factor.axes() == axes
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
        assert len(outputs) <= base.FULL
        diagonal = inputs, np.diag(outputs), count
        small = ((base, "FULL", 0),)
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
    others = [k for k in range(each.ndim - 1) if k not in axes]
    turned = each.transpose([0, *(k + 1 for k in (*axes, *others))])
    left = int(np.prod([each.shape[k + 1] for k in axes], dtype=int))
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
                lambda f, sides=sides: f.rotated(*sides).sum_of_squares(),
                right,
                patches=patches,
            )
        yield Question(
            f"gradients with {turned} rotated",
            lambda f, sides=sides: f.rotated(*sides).materialize(),
            expected,
        )


def _pairs(each, others):
    return each.reshape(len(each), -1) @ others.reshape(len(others), -1).T


def of_pairs(name, hold):
    """Return the questions of pairs with other samples.

    Their factor holds as much before it is asked, or nothing, or is written
    out.
    """
    make, each = ALL[name], gradients(name)
    full = factors.Full(tf.constant(each))
    others = {
        "new": without_first(make(), 1),
        f"holding {hold}": without_first(holding(hold, make), 1),
        "written out": factors.Full(tf.constant(each[1:])),
    }
    right = _pairs(each, each[1:])
    return [
        Question(
            f"pairs with {what}" + (", of one written out" if whole else ""),
            lambda f, whole=whole, other=other: (whole or f).gram(other),
            right,
        )
        for what, other in others.items()
        for whole in (None, full)
    ]


def check_answers(name, asked):
    """Ask a factor that has not been asked yet, or holds something."""
    make = ALL[name]
    for hold in HELD:
        for question in asked:
            # What is held is not asked for by chunks.
            if hold == "nothing" or "by chunks" not in question.name:
                found = question.answer(holding(hold, make))
                question.check(found, f"of a factor that holds {hold}")
    factor = make()
    for question in asked:
        question.check(question.answer(factor), "of one factor, in turn")


def check_blank(name, asked):
    """Ask a factor whose second sample is broken, or not, but blanked."""
    for order, value, norms in itertools.product(
        (asked, asked[::-1]), (None, np.nan), (True, False)
    ):
        factor = blanked(name, value, norms)
        for question in order:
            where = f"second sample {value}, norms asked before: {norms}"
            question.check(question.answer(factor), where)


def check_in_a_graph(name, asked, known, xla):
    """Of the same tensors, of which a graph knows the batch's size or not."""
    parts = ALL[name]().holders()
    held = [
        (k, attribute)
        for k, part in enumerate(parts)
        for attribute in part.rows
        if getattr(part, attribute) is not None
    ]
    tensors = [getattr(parts[k], attribute) for k, attribute in held]

    def compute(*tensors):
        def make():
            factor = ALL[name]()
            for (k, attribute), tensor in zip(held, tensors):
                setattr(factor.holders()[k], attribute, tensor)
            return factor

        return [question.answer(make()) for question in asked]

    specs = [
        tf.TensorSpec([N if known else None, *t.shape[1:]], t.dtype)
        for t in tensors
    ]
    graph = tf.function(
        compute, input_signature=specs, jit_compile=xla, autograph=False
    )
    for question, found in zip(asked, graph(*tensors), strict=True):
        question.check(found, f"in a graph: XLA {xla}, size known {known}")
