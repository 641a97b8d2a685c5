"""A step of `fit` subtracts what the oracle aggregates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle as samples
from tests.models import making
from tests.multitask import networks, oracle

AGGREGATIONS = {
    "upgrad": oracle.upgrad,
    "mgda": oracle.mgda,
    "cagrad": oracle.cagrad,
    "imtlg": oracle.imtlg,
    "aligned_mtl": oracle.aligned,
    "geometric_median": oracle.median,
    "pcgrad": lambda rows: oracle.pcgrad(
        rows, kpg.aggregations.PCGrad().order(len(rows))
    ),
    "exact": oracle.shortest,
    "krum": oracle.krum,
}
OBJECTS = {
    "exact": kpg.aggregations.MGDA(exact=True),
    "krum": kpg.aggregations.Krum(1, 2),
    "geometric_median": kpg.aggregations.GeometricMedian(max_iterations=5000),
}


def _model(network, aggregation, **arguments):
    inputs, outputs = getattr(networks, network)()
    model = kpg.PerGradModel(inputs, outputs)
    mode = kpg.Vectorized(aggregation)
    model = making.compiled(model, mode, rate=1.0, **arguments)
    return model, networks.data(inputs, outputs)


def _rows(model, x, y):
    """Return the samples' gradients of all variables, (n, P)."""
    gradients = samples.per_sample_gradients(model, x, y)
    columns = [
        np.zeros((len(y), *v.shape)) if c is None else c
        for c, v in zip(gradients, model.trainable_variables)
    ]
    return np.concatenate([c.reshape(len(y), -1) for c in columns], 1)


def _flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def _update(model, x, y):
    before = _flat(model.get_weights())
    making.trained(model, x, y, batch_size=len(y))
    return before - _flat(model.get_weights()), model.history.history


N = networks.N


def check_update(network, name, n=N, **settings):
    aggregation = OBJECTS.get(name, name)
    model, (x, y) = _model(network, aggregation, **settings)
    x, y = keras.tree.map_structure(lambda part: part[:n], (x, y))
    rows = _rows(model, x, y)
    found, history = _update(model, x, y)
    expected = AGGREGATIONS[name](rows)
    np.testing.assert_allclose(found, expected, 1e-8, 1e-8)
    assert history["nonfinite_samples"] == [0]
    if n == 1:
        assert name == "cagrad" or np.allclose(expected, rows[0], 1e-8, 1e-8)
        assert np.isnan(history["conflict_share"]).all()
    else:
        share = ((rows @ rows.T) < 0).sum() / (n * (n - 1))
        assert history["conflict_share"] == [pytest.approx(share)]
        assert share > 0.1 or network != "dense"


SETTINGS = [
    *(("dense", name, N) for name in AGGREGATIONS),
    *((net, "upgrad", N) for net in ("lstm", "convolution", "tied")),
    # One sample is its own gradient, but with CAGrad.
    *(("dense", name, 1) for name in ("upgrad", "mgda", "cagrad", "imtlg")),
]


@pytest.mark.parametrize(("network", "name", "n"), SETTINGS)
def test_what_is_subtracted(float64, network, name, *, n):
    check_update(network, name, n)


@pytest.mark.parametrize("name", ["upgrad", "imtlg", "cagrad"])
@pytest.mark.parametrize("how", ["run_eagerly", "jit_compile"])
def test_eager_and_xla_are_as_the_graph(float64, name, how):
    check_update("dense", name, **{how: True})


def test_bert(float64):
    check_update("bert", "upgrad")


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_samples_that_are_not_finite_are_left_out(float64, name):
    model, (x, y) = _model("dense", OBJECTS.get(name, name))
    x, y = np.repeat(x, 2, 0)[:7].copy(), np.arange(21.0).reshape(7, 3)
    x += np.random.default_rng(1).normal(size=x.shape)
    keep = np.array([0, 1, 2, 4, 5, 6])
    x[3, 1] = np.nan
    rows = _rows(model, x[keep], y[keep])
    if name == "pcgrad":
        # Without the row in the orders of seven.
        order = kpg.aggregations.PCGrad().order(7).numpy()[keep]
        order = [
            [np.flatnonzero(keep == j)[0] for j in o if j != 3] for o in order
        ]
        expected = oracle.pcgrad(rows, order)
    else:
        expected = AGGREGATIONS[name](rows)
    found, history = _update(model, x, y)
    # Keras's loss is a mean over seven, and the samples' gradients are as in
    # a batch without the one that is left out.
    np.testing.assert_allclose(found, expected, 1e-8, 1e-8)
    assert history["nonfinite_samples"] == [1]


def test_gradients_of_zero_change_nothing(float64):
    for name in (*AGGREGATIONS, "krum"):
        aggregation = OBJECTS.get(name) or kpg.Vectorized(name).aggregation
        weights = aggregation.gramian_weights(tf.zeros((6, 6), tf.float64))
        assert np.isfinite(weights).all(), name


def test_agreeing_samples_are_the_mean(float64):
    rows = np.abs(np.random.default_rng(0).normal(size=(5, 7)))
    gramian = tf.constant(rows @ rows.T)
    for name in ("upgrad", "pcgrad"):
        weights, _ = kpg.Vectorized(name).aggregation.mean_weights(gramian)
        np.testing.assert_allclose(weights, np.ones(5), rtol=1e-12)


def test_a_ragged_last_batch_and_float32():
    model, (x, y) = _model("dense", "upgrad")
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    model, (x, y) = _model("dense", "aligned_mtl")
    rows = _rows(model, x, y)
    found, _ = _update(model, x, y)
    np.testing.assert_allclose(found, oracle.aligned(rows), 1e-3, 1e-4)


def test_statistics_are_those_before_aggregation(float64):
    model, (x, y) = _model("dense", "upgrad")
    mode = kpg.Vectorized("upgrad", statistics=True)
    making.compiled(model, mode)
    rows = _rows(model, x, y)
    _, history = _update(model, x, y)
    norm, variance = np.linalg.norm(rows.mean(0)), rows.var(0, ddof=1).sum()
    assert history["gradient_norm"] == [pytest.approx(norm)]
    assert history["gradient_variance"] == [pytest.approx(variance)]


def test_orders_are_drawn_anew_and_repeat(float64):
    updates = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model, (x, y) = _model("dense", kpg.aggregations.PCGrad(seed=4))
        start = model.get_weights()
        for _ in range(2):
            model.set_weights(start)
            updates.append(_update(model, x, y)[0])
    np.testing.assert_array_equal(updates[0], updates[2])
    np.testing.assert_array_equal(updates[1], updates[3])
    assert np.abs(updates[0] - updates[1]).max() > 1e-6
