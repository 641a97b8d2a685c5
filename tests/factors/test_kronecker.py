"""Kronecker products and rotations of every factor, against sums in NumPy."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors
from keras_pergrad.factors import by_chunks, kronecker
from tests.factors.test_every_factor import HELD, KEEP, N, drawn
from tests.factors.test_projection import ALL, LIMITS

#: Which axes are on the left of those that have two sides.
SIDES = {
    "Outer": (0,),
    "Outer of positions": (0,),
    "Outer of few positions": (0,),
    "Outer turned": (1,),
    "Rows": (0,),
    "Patches": (0, 1),
    "join of look-ups": (0,),
    "many positions": (0,),
    "heads behind": (0,),
    "heads before": (0, 1),
    "heads around": (1,),
    "heads turned": (0, 2),
    "a row": (),
    "a vector": (0,),
    "a table of several axes": (0,),
    "dilated": (0, 1),
    "strides": (0, 1),
    "joined matrices": (0,),
}


def _matrices(gradients, axes):
    """Return gradients as (n, axes on the left, others)."""
    others = [k for k in range(gradients.ndim - 1) if k not in axes]
    turned = gradients.transpose([0, *(k + 1 for k in (*axes, *others))])
    left = int(np.prod([gradients.shape[k + 1] for k in axes], dtype=int))
    return turned.reshape(len(gradients), left, -1)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", SIDES)
def test_sides_are_sums_over_samples_and_positions(name, held):
    found = HELD[held](ALL[name]).kronecker()
    axes = SIDES[name]
    assert found.axes == axes == ALL[name]().axes()
    left, right = _sides(name)
    assert int(found.count) == len(left)
    # They are the sides of the gradients.
    gradients = _matrices(ALL[name]().materialize().numpy(), axes)
    sides = (np.reshape(t, (N, -1, t.shape[-1])) for t in (left, right))
    products = np.einsum("nti,nto->nio", *sides)
    np.testing.assert_allclose(products, gradients, **LIMITS)
    inputs = np.asarray(found.inputs)
    if inputs.ndim == 1:
        inputs = np.diag(inputs)
    np.testing.assert_allclose(inputs, left.T @ left, **LIMITS)
    np.testing.assert_allclose(found.outputs, right.T @ right, **LIMITS)


def _sides(name):
    """Return all a and all b, with the variable's axes in their order."""
    factor, axes = ALL[name](), SIDES[name]
    if isinstance(factor, factors.Rows):
        a = np.eye(5)[np.asarray(factor.ids).ravel()]
        return a, np.asarray(factor.dz).reshape(len(a), -1)
    if isinstance(factor, factors.Patches):
        small = np.asarray(factor.small)
        return _windows(factor), small.reshape(-1, small.shape[-1])
    shape = np.array(factor.shape)
    before = shape if factor.perm is None else factor.unpermuted
    order = range(len(shape)) if factor.perm is None else factor.perm
    sides = []
    count = len(axes)
    for tensor, places in (
        (factor.x, range(count)),
        (factor.dz, range(count, len(shape))),
    ):
        rows = np.asarray(tensor).reshape(-1, tensor.shape[-1])
        apart = rows.reshape(-1, *(before[k] for k in places))
        # Where each of these axes stands in the variable.
        back = [list(order).index(k) for k in places]
        apart = apart.transpose([0, *(k + 1 for k in np.argsort(back))])
        sides.append(apart.reshape(len(rows), -1))
    return sides


def _windows(factor):
    """Return the pixels of each window, by slices of NumPy."""
    w = factor.windows
    padded = np.pad(factor.big, [(0, 0), (w.before[0], w.after[0]), (0, 0)])
    starts = w.strides[0] * np.arange(w.count)
    taps = w.dilation[0] * np.arange(w.kernel[0])
    found = padded[:, starts[:, None] + taps]
    return found.reshape(N * w.count, -1)


@pytest.mark.parametrize("full", [kronecker.FULL, 0])
@pytest.mark.parametrize("name", [n for n in ALL if n not in SIDES])
def test_others_give_the_exact_sum_or_its_diagonal(name, full, monkeypatch):
    monkeypatch.setattr(kronecker, "FULL", full)
    gradients = ALL[name]().materialize().numpy().reshape(N, -1)
    found = ALL[name]().kronecker()
    assert found.axes == ()
    np.testing.assert_array_equal(found.inputs, [[1]])
    assert int(found.count) == 1
    right = gradients.T @ gradients
    if not full:
        right = np.diag(right)
    np.testing.assert_allclose(found.outputs, right, **LIMITS)


def test_one_sample_at_one_position_is_exact():
    factor = factors.Outer(drawn(4)[:1], drawn(6)[:1])
    inputs, outputs, count, _ = factor.kronecker()
    m = factor.materialize().numpy().ravel()
    product = np.kron(inputs, outputs) / count
    np.testing.assert_allclose(product, np.outer(m, m), **LIMITS)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", ALL)
def test_rotations(name, held):
    axes = SIDES.get(name, ())
    matrices = _matrices(ALL[name]().materialize().numpy(), axes)
    rng = np.random.default_rng(3)
    left = rng.normal(size=(matrices.shape[1], 3))
    right = rng.normal(size=(matrices.shape[2], 2))
    for u, v in itertools.product((None, left), (None, right)):
        expected = matrices if u is None else u.T @ matrices
        expected = expected if v is None else expected @ v
        found = HELD[held](ALL[name]).rotated(u, v)
        np.testing.assert_allclose(
            _dense(found.sum_of_squares()),
            np.square(expected).sum(0),
            **LIMITS,
        )
        got = HELD[held](ALL[name]).rotated(u, v).materialize()
        np.testing.assert_allclose(got, expected, **LIMITS)


def _dense(gradient):
    return tf.convert_to_tensor(gradient).numpy()


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_they_are_the_same_in_a_graph(name, xla, monkeypatch):
    monkeypatch.setattr(by_chunks, "HELD", 20)
    right = ALL[name]().kronecker()
    v = np.random.default_rng(3).normal(size=(right.outputs.shape[0], 2))
    rotated = ALL[name]().rotated(outputs=v).sum_of_squares()

    def compute():
        found = ALL[name]().kronecker()
        turned = ALL[name]().rotated(outputs=v)
        return found[:3], tf.convert_to_tensor(turned.sum_of_squares())

    found, turned = tf.function(compute, jit_compile=xla, autograph=False)()
    for one, other in zip(found, right):
        np.testing.assert_allclose(one, other, **LIMITS)
    np.testing.assert_allclose(turned, _dense(rotated), **LIMITS)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("name", SIDES)
def test_a_blank_sample_adds_nothing(name, norms):
    factor, right = ALL[name](), ALL[name]()
    for one, value in ((factor, np.nan), (right, 0)):
        for part in one.holders():
            for tensor in part.rows:
                numbers = getattr(part, tensor)
                if numbers is not None:
                    numbers = np.array(numbers)
                    numbers[1] = value
                    setattr(part, tensor, tf.constant(numbers))
    if norms:
        factor.squared_norms()
    factor.select(tf.constant(KEEP))
    for one, other in zip(factor.kronecker()[:3], right.kronecker()[:3]):
        np.testing.assert_allclose(one, other, **LIMITS)
    turned = factor.rotated(outputs=None)
    np.testing.assert_allclose(
        turned.materialize(), right.rotated().materialize(), **LIMITS
    )
