import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.factors import Rows
from keras_pergrad.factors.hashed_ids import squares_by_hash
from keras_pergrad.factors.rows import METHODS


def _factor(n, positions, method, rows=4):
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(0, rows, (n, positions)), tf.int32)
    dz = tf.constant(rng.normal(size=(n, positions, 3)))
    return Rows(ids, dz, (rows, 3), method=method)


def _traced(norms, *sizes, dtype=tf.int32):
    """A graph, for ids of these sizes, of which None is unknown."""
    ids = tf.TensorSpec(sizes, dtype)
    return tf.function(norms, [ids, tf.TensorSpec([*sizes, 3], tf.float64)])


@pytest.mark.parametrize("method", [*METHODS, None])
# Of 40 rows most positions meet one that no other meets.
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (3, 7, 40)])
def test_every_method_sums_equal_ids_before_squaring(method, shape):
    factor = _factor(*shape[:2], method, *shape[2:])
    table = np.asarray(factor.materialize()).reshape(shape[0], -1)
    expected = np.square(table).sum(1)
    np.testing.assert_allclose(factor.squared_norms(), expected, rtol=1e-12)


@pytest.mark.parametrize("rows", [4, 40, 2**29, 2**31 - 1])
@pytest.mark.parametrize("known", [3, None])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_keys_of_all_samples_are_wide_enough(rows, known, dtype):
    factor = _factor(3, 7, None, rows=rows)
    expected = _factor(3, 7, "sort", rows=rows).squared_norms()

    def norms(ids, dz):
        return Rows(ids, dz, factor.shape).squared_norms()

    graph = _traced(norms, known, 7, dtype=dtype)
    found = graph(tf.cast(factor.ids, dtype), factor.dz)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(7, 1300), (1, 9000), (40, 900), (9001, 1)])
@pytest.mark.parametrize("known", [True, False])
# Some samples' ids are mostly new, those of others mostly not.
def test_samples_of_several_hash_tables(shape, known):
    factor = _factor(*shape, "unique", 4000)
    divisors = tf.where(tf.range(shape[0]) < shape[0] // 2, 1, 2000)
    ids = factor.ids // divisors[:, None]
    expected = Rows(ids, factor.dz, factor.shape, method="sort").squared_norms()

    def norms(ids, dz):
        squares = squares_by_hash(ids, dz, 4000)
        assert squares.shape == ids.shape[:1]
        return squares

    graph = _traced(norms, *(shape if known else (None, None)))
    np.testing.assert_allclose(graph(ids, factor.dz), expected, rtol=1e-12)


def test_no_samples_have_no_norms():
    ids, dz = tf.zeros([0, 9000], tf.int32), tf.zeros([0, 9000, 3])
    assert squares_by_hash(ids, dz, 4).shape == [0]


@pytest.mark.parametrize("positions", [10, 23])
def test_pairs_of_equal_ids_are_all_found(positions):
    # From none to all: both ways to add are taken, at their limits, too.
    dz = tf.constant(
        np.random.default_rng(0).normal(size=(1, positions, 3)), tf.float64
    )
    for pairs in range(positions // 2 + 1):
        ids = np.arange(positions)
        ids[pairs : 2 * pairs] = ids[:pairs]
        factors = [
            Rows(tf.constant(ids[None]), dz, (positions, 3), method=method)
            for method in ("unique", "sort")
        ]
        found, expected = (each.squared_norms() for each in factors)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("vocabulary", [1, 2, 7, 60, 10**6])
def test_products_of_samples_that_share_many_ids_or_none(vocabulary, xla):
    # From far more pairs than entries to none: whole numbers stay exact.
    rng = np.random.default_rng(vocabulary)
    ids = rng.integers(0, vocabulary, (9, 12))
    dz = rng.integers(-9, 10, (9, 12, 3)).astype("float64")
    places = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    tables = np.zeros((9, places.max() + 1, 3))
    for k in range(9):
        np.add.at(tables[k], places[k], dz[k])
    expected = np.einsum("krd,lrd->kl", tables, tables)

    @tf.function(jit_compile=xla, autograph=False)
    def products(ids, dz):
        return Rows(ids, dz, (vocabulary, 3)).gram()

    found = products(tf.constant(ids, tf.int32), tf.constant(dz))
    np.testing.assert_array_equal(found, expected)


def test_rows_that_cancel_leave_no_rounding_behind():
    ids = tf.constant([[0, 0, *range(1, 20)]])
    dz = tf.concat([[[[1e8], [-1e8]]], tf.ones((1, 19, 1))], 1)
    norms = Rows(ids, dz, (30, 1)).squared_norms()
    np.testing.assert_array_equal(norms, [19.0])


@pytest.mark.parametrize("method", ["table", "compare", "sort", None])
def test_xla_gives_the_same_norms(method):
    @tf.function(jit_compile=True)
    def norms():
        factor = _factor(3, 7, method)
        assert factor.chosen_method() != "unique"
        return factor.squared_norms()

    expected = _factor(3, 7, "sort").squared_norms()
    np.testing.assert_allclose(norms(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("vocabulary", "positions", "method"),
    [
        (4, 7, "whole"),
        (40, 7, "table"),
        (10**6, 7, "compare"),
        (10**6, 600, "unique"),
    ],
)
def test_a_card_without_xla_launches_few_ops(
    vocabulary, positions, method, *, monkeypatch
):
    """A hash table takes some 50 ops, in a loop for large batches."""
    factor = _factor(3, positions, None, rows=vocabulary)
    expected = factor.squared_norms()
    monkeypatch.setattr(
        "keras_pergrad.factors.rows.has_cuda_card", lambda: True
    )
    assert factor.chosen_method() == method

    def norms(ids, dz):
        return Rows(ids, dz, factor.shape).squared_norms()

    graph = _traced(norms, None, positions)
    found = graph(factor.ids, factor.dz)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    ops = graph.get_concrete_function().graph.get_operations()
    names = {op.type for op in ops}
    loops = {"UniqueWithCounts", "While", "StatelessWhile", "If", "StatelessIf"}
    assert bool(names & loops) == (method == "unique")
    if method != "unique":
        assert _launches(ops) <= 12


def _launches(ops):
    """How many ops of a graph compute with tensors of a card."""
    host = {"Const", "Placeholder", "Identity", "Shape", "Size", "Range"}
    views = {"Reshape", "ExpandDims", "StridedSlice", "Pack", "Unpack"}
    return sum(
        op.type not in host | views and any(t.shape.rank for t in op.outputs)
        for op in ops
    )
