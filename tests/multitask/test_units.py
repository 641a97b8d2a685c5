"""Gradients in other units, and of very different lengths."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.multitask import oracle
from tests.multitask.matrices import traced

of = kpg.aggregations
AGGREGATIONS = [
    of.IMTLG(),
    of.AlignedMTL(),
    of.AlignedMTL(scale_mode="median"),
    of.CAGrad(),
    of.CAGrad(1.5),
    of.UPGrad(),
    of.MGDA(),
    of.MGDA(exact=True),
    of.PCGrad(),
    of.Krum(1, 2),
    of.GeometricMedian(),
]
LENGTHS = {
    "short": [1e-4] * 4,
    "long": [1e4] * 4,
    "one long": [1.0, 1e4, 1.0, 1.0],
    "all": [1.0, 1e4, 2.0, 1e-4],
    "far": [1.0, 1e6, 2.0, 1.0],
    "one zero": [1.0, 0.0, 1e4, 1.0],
}


def _rows(lengths):
    rows = np.random.default_rng(0).normal(size=(len(lengths), 50))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    return rows * np.array(lengths)[:, None]


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=repr)
def test_float32_gives_the_weights_of_float64(aggregation):
    narrow, wide = traced(aggregation, "float32"), traced(aggregation)
    for name, lengths in LENGTHS.items():
        if type(aggregation) is of.Krum and name not in ("short", "long"):
            continue  # Two at one distance: rounding chooses.
        rows = _rows(lengths)
        expected = wide(rows @ rows.T).numpy()
        found = narrow((rows @ rows.T).astype("float32")).numpy()
        assert np.any(expected), name
        # The parts of the aggregated gradient, of whatever length.
        least = 1e-6 * np.abs(expected).min()
        np.testing.assert_allclose(found, expected, 2e-3, least, err_msg=name)


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=repr)
def test_one_unit_for_all_changes_nothing(aggregation):
    rows = _rows([1.0, 2.0, 0.5, 1.0])
    gramian = tf.constant(rows @ rows.T, tf.float32)
    expected = aggregation.gramian_weights(gramian)
    for scale in (1e-8, 1e8):
        found = aggregation.gramian_weights(gramian * scale)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


#: Without them the others have these weights, but for PCGrad, whose orders
#: are drawn anew, and for those that a row of zeros is a vote or the best of.
WITHOUT_ZEROS = (of.UPGrad, of.CAGrad, of.AlignedMTL)


@pytest.mark.parametrize(
    "aggregation",
    [*AGGREGATIONS, of.CAGrad(0.05), of.CAGrad(1.0), of.Krum(0)],
    ids=repr,
)
def test_rows_of_zeros_and_vanishing_ones_end_nothing(aggregation):
    """Of m rows any number; the weights of the others are as without them."""
    function = traced(aggregation)
    for m, zeros, length in itertools.product(
        (3, 5), (1, 2, 4, 5), (0.0, 1e-30, 1e-15)
    ):
        if zeros > m or (isinstance(aggregation, of.Krum) and m < 5):
            continue
        generator = np.random.default_rng(zeros)
        rows = generator.normal(size=(m, 4))
        is_short = np.arange(m) < zeros
        rows[is_short] *= length
        weights = function(rows @ rows.T).numpy()
        name = f"{zeros} of {m} at {length}"
        assert np.isfinite(weights).all(), name
        if isinstance(aggregation, WITHOUT_ZEROS) and zeros < m:
            others = rows[~is_short]
            alone = function(others @ others.T).numpy() * len(others) / m
            np.testing.assert_allclose(
                weights[~is_short], alone, 1e-6, 1e-8, err_msg=name
            )


def test_closed_forms_at_lengths_that_differ():
    a, b, cosine = 0.1, 1000.0, -0.12
    gramian = np.array([[a * a, cosine * a * b], [cosine * a * b, b * b]])
    given = tf.constant(gramian, tf.float32)
    # Equal projections of two gradients: the other one's length counts.
    expected = np.array([b, a]) / (a + b)
    found = of.IMTLG().gramian_weights(given)
    np.testing.assert_allclose(found, expected, 1e-5)
    values, vectors = np.linalg.eigh(gramian)
    root = vectors / np.sqrt(values) @ vectors.T
    found = of.AlignedMTL().gramian_weights(given)
    expected = np.sqrt(values[0]) * root.sum(1) / 2
    np.testing.assert_allclose(found, expected, 1e-5)
    rows = np.linalg.cholesky(gramian)
    found = of.CAGrad().gramian_weights(given).numpy()
    np.testing.assert_allclose(found @ rows, oracle.cagrad(rows), 1e-5)


APART = [[1.0, 0.0], [0.0, 4.0]]
AGAINST = [[1.0, -0.5], [-0.5, 1.0]]
#: Of 0, 1/4, 2 and 5/2, of which the first two are nearest to each other.
ON_A_LINE = np.outer([0, 0.25, 2, 2.5], [0, 0.25, 2, 2.5])
BY_HAND = [
    (of.UPGrad(), AGAINST, [0.75, 0.75]),
    (of.PCGrad(), AGAINST, [1.5, 1.5]),
    (of.PCGrad(), np.abs(AGAINST), [1, 1]),
    (of.MGDA(), APART, [0.8, 0.2]),
    (of.MGDA(exact=True), APART, [0.8, 0.2]),
    (of.IMTLG(), APART, [2 / 3, 1 / 3]),
    (of.AlignedMTL(), APART, [1 / 2, 1 / 4]),
    (of.AlignedMTL(scale_mode="rmse"), APART, np.sqrt(2.5) / [2, 4]),
    (of.CAGrad(0.0), AGAINST, [0.5, 0.5]),
    (of.CAGrad(1.0), [[1.0, -1.0], [-1.0, 4.0]], [10 / 7, 4 / 7]),
    (of.Krum(1), ON_A_LINE, [1, 0, 0, 0]),
    (of.Krum(0), ON_A_LINE, [0, 1, 0, 0]),
    (of.GeometricMedian(1e-9), np.diag([1.0, 1.0]), [0.5, 0.5]),
]


@pytest.mark.parametrize(("aggregation", "gramian", "weights"), BY_HAND)
def test_weights_by_hand(aggregation, gramian, weights):
    gramian = np.array(gramian)
    found = aggregation.gramian_weights(tf.constant(gramian))
    np.testing.assert_allclose(found, weights, rtol=1e-3, atol=1e-9)
    if isinstance(aggregation, (of.Krum, of.PCGrad)):
        return  # They count rows, or add up.
    # A row that is not finite is none, and the weights are those of a mean.
    broken = np.pad(gramian, (0, 1), constant_values=np.nan)
    found, finite = aggregation.mean_weights(tf.constant(broken))
    np.testing.assert_allclose(found, [*(3 * np.array(weights)), 0], rtol=1e-3)
    assert finite.numpy().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_opposite_gradients_have_weights(dtype):
    gramian = tf.constant([[4.0, -4.0], [-4.0, 4.0]], dtype)
    for aggregation in (of.IMTLG(), of.AlignedMTL(), of.CAGrad()):
        weights = aggregation.gramian_weights(gramian)
        np.testing.assert_allclose(weights, [0.5, 0.5], 1e-6)


def test_weights_that_cancel_are_refused():
    # Equal parts ask for v = (3, -1.5, -1.5) / ..., whose sum is zero.
    lengths = np.array([1.0, 1.0, 1.0])
    cosines = np.array([[1, 0.9, 0.9], [0.9, 1, 0.7], [0.9, 0.7, 1]])
    v = np.linalg.solve(cosines, np.ones(3))
    assert v[0] < 0 < v[1]
    lengths[0] = -v[0] / (v[1] + v[2])
    gramian = tf.constant(cosines * lengths * lengths[:, None])
    with pytest.raises(tf.errors.InvalidArgumentError, match="or its weights"):
        of.IMTLG().gramian_weights(gramian)


def test_a_long_gradient_does_not_move_the_median_far():
    rows = _rows([1.0, 1.0, 1.0, 1e8])
    gramian = tf.constant(rows @ rows.T)
    weights = of.GeometricMedian().gramian_weights(gramian).numpy()
    assert np.linalg.norm(weights @ rows) < 2
