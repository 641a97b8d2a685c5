"""Kronecker products of every factor, against sums in NumPy."""

import numpy as np
import pytest

from keras_pergrad import factors
from keras_pergrad.factors import base
from tests.factors.cases import ALL, HELD, SIDES, N, drawn, gradients
from tests.factors.test_every_factor import LIMITS, matrices_of


@pytest.mark.parametrize("name", SIDES)
def test_sides_are_sums_over_samples_and_positions(name):
    axes = SIDES[name]
    assert ALL[name]().axes() == axes
    left, right = _sides(name)
    # They are the sides of the gradients.
    sides = (np.reshape(t, (N, -1, t.shape[-1])) for t in (left, right))
    products = np.einsum("nti,nto->nio", *sides)
    matrices = matrices_of(gradients(name), axes)
    np.testing.assert_allclose(products, matrices, **LIMITS)
    for hold in HELD.values():
        found = hold(ALL[name]).kronecker()
        assert found.axes == axes
        assert int(found.count) == len(left)
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


@pytest.mark.parametrize("name", [n for n in ALL if n not in SIDES])
def test_others_give_the_exact_sum_or_its_diagonal(name, monkeypatch):
    each = gradients(name).reshape(N, -1)
    exact = each.T @ each
    for full, right in ((base.FULL, exact), (0, np.diag(exact))):
        monkeypatch.setattr(base, "FULL", full)
        found = ALL[name]().kronecker()
        assert found.axes == ()
        np.testing.assert_array_equal(found.inputs, [[1]])
        assert int(found.count) == 1
        np.testing.assert_allclose(found.outputs, right, **LIMITS)


def test_one_sample_at_one_position_is_exact():
    factor = factors.Outer(drawn(4)[:1], drawn(6)[:1])
    inputs, outputs, count, _ = factor.kronecker()
    m = factor.materialize().numpy().ravel()
    product = np.kron(inputs, outputs) / count
    np.testing.assert_allclose(product, np.outer(m, m), **LIMITS)
