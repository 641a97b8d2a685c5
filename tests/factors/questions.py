"""What every factor is asked, with the answers of its gradients in NumPy."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors import chunks, outer
from tests.factors.cases import (
    ALL,
    HELD,
    WEIGHTS,
    N,
    blanked,
    dense,
    gradients,
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


def questions(each):
    """Return all questions of gradients, but those of pairs with others."""
    norms = np.square(each).reshape(N, -1).sum(1)
    found = [
        *_of_sums(each),
        *_of_products(each),
        Question("pairs", lambda f: f.gram(), _pairs(each, each)),
        Question("norms", lambda f: f.squared_norms(), norms, atol=0),
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
            atol=1e-12,
        )
    total = np.square(each.sum(0)).sum()
    yield Question(
        "norm of the sum", lambda f: f.squared_norm_of_sum(), total, atol=0
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
    return ((chunks, "HELD_AT_ONCE", samples * each[0].size),)


def _squares(factor):
    found = factor.sum_of_squares()
    assert isinstance(found, type(factor.weighted_sum(None)))
    return found


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
        f"holding {hold}": without_first(HELD[hold](make()), 1),
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


def check_answers(name, asked, hold):
    """Ask a factor that holds so much; no answer changes it."""
    factor = HELD[hold](ALL[name]())
    before = dict(vars(factor))
    for question in asked:
        question.check(question.answer(factor), f"where {hold} are held")
    now = vars(factor)
    assert list(now) == list(before)
    assert all(now[name] is value for name, value in before.items())


def check_blank(name, asked, norms):
    """Ask a factor whose second sample is broken, or not, but blanked.

    `norms`: whether it was held for them before it was blanked.
    """
    for order, value in itertools.product((asked, asked[::-1]), (None, np.nan)):
        factor = blanked(name, value, norms)
        for question in order:
            where = f"second sample {value}, held before: {norms}"
            question.check(question.answer(factor), where)


def check_in_a_graph(name, asked, known, *, xla):
    """Of the same tensors, of which a graph knows the batch's size or not."""
    tensors = []
    ALL[name]().map(lambda tensor: tensors.append(tensor) or tensor)

    def compute(*tensors):
        def make():
            given = iter(tensors)
            return ALL[name]().map(lambda _: next(given))

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
