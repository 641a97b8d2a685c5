"""What every factor answers, against its gradients written out."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad import factors

N = 4
KEEP = np.array([True, False, True, True])
WEIGHTS = np.array([0.5, 1.0, 2.0, 0.25])


class Turned(factors.Adapted):
    """Of a matrix whose rows are in reverse order."""

    def change(self, tensor):
        return tf.reverse(tensor, [tensor.shape.rank - 2])

    def squared_norms(self):
        return self.factor.squared_norms()


def drawn(*shape):
    rng = np.random.default_rng(shape)
    return tf.constant(rng.normal(size=(N, *shape)))


def rows(*shape):
    ids = np.random.default_rng(shape).integers(0, 5, (N, *shape))
    return factors.Rows(tf.constant(ids), drawn(*shape, 3), (5, 3))


def patches():
    windows = factors.Windows.of((8,), (3,), (1,), (1,), "valid")
    return factors.Patches(drawn(8, 2), drawn(6, 4), windows, (3, 2, 4))


#: A factor whose tensors nothing else has held before.
FACTORS = {
    "Full": lambda: factors.Full(drawn(3, 2)),
    "Sum": lambda: factors.Sum(drawn(7, 3)),
    "Product": lambda: factors.Product(drawn(7, 3), drawn(7, 3)),
    "Outer": lambda: factors.Outer(drawn(4), drawn(6)),
    "Outer of positions": lambda: factors.Outer(drawn(2, 4), drawn(2, 6)),
    "Outer turned": lambda: factors.Outer(
        drawn(9, 4), drawn(9, 6), [6, 4], [1, 0], [4, 6]
    ),
    "Blocks": lambda: factors.Blocks(drawn(2, 5, 3), drawn(2, 5, 4)),
    "Rows": lambda: rows(6),
    "Patches": patches,
    "Columns": lambda: factors.Columns(
        [factors.Full(drawn(3, 2)), factors.Outer(drawn(3), drawn(4))]
    ),
    "Joined": lambda: factors.Joined(
        [factors.Full(drawn(3, 4)), factors.Outer(drawn(3), drawn(4))]
    ),
    "join of look-ups": lambda: factors.join([rows(6), rows(2)]),
    "join of a table and a matrix": lambda: factors.join(
        [rows(6), factors.Outer(drawn(2, 5), drawn(2, 3))]
    ),
    "Adapted": lambda: Turned(factors.Outer(drawn(4), drawn(6))),
    "Adapted table": lambda: Turned(rows(6)),
    "Widened": lambda: factors.Widened(factors.Sum(drawn(7, 3)), "float64"),
}


def test_there_is_a_case_of_every_class():
    public = map(factors.__dict__.get, factors.__all__)
    classes = {
        one
        for one in public
        if inspect.isclass(one)
        and issubclass(one, factors.SampleGradients)
        and not inspect.isabstract(one)
    }
    assert classes <= {type(make()) for make in FACTORS.values()}


@pytest.mark.parametrize("name", FACTORS)
def test_norms_and_sums_are_those_of_the_gradients(name):
    make = FACTORS[name]
    gradients = make().materialize().numpy()
    assert gradients.shape[0] == N
    expected = np.square(gradients).reshape(N, -1).sum(1)
    factor = make()
    np.testing.assert_allclose(factor.squared_norms(), expected, rtol=1e-10)
    total = np.square(gradients.sum(0)).sum()
    np.testing.assert_allclose(factor.squared_norm_of_sum(), total, rtol=1e-10)
    for one in (factor, make()):  # with norms before, and without
        for weights in (None, WEIGHTS):
            found = tf.convert_to_tensor(one.weighted_sum(weights))
            scale = np.ones(N) if weights is None else weights
            right = np.tensordot(scale, gradients, 1)
            np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-12)


def test_a_table_keeps_its_rows_where_each_entry_is_changed_by_itself():
    factor = factors.Widened(rows(6), "float64")
    assert isinstance(factor.weighted_sum(None), tf.IndexedSlices)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("name", FACTORS)
def test_a_sample_is_blank_that_is_not_kept(name, norms):
    factor = FACTORS[name]()
    gradients = FACTORS[name]().materialize().numpy()
    if norms:
        factor.squared_norms()
    factor.select(tf.constant(KEEP))
    found = tf.convert_to_tensor(factor.weighted_sum(None))
    expected = gradients[KEEP].sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FACTORS)
def test_methods_and_bytes_are_told(name):
    factor = FACTORS[name]()
    assert isinstance(factor.chosen_method(), str)
    assert isinstance(factor.sum_method(), str)
    held = factor.norm_bytes(N)
    assert held is None or held > 0
