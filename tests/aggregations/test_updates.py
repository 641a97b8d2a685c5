"""A step of `fit` subtracts what the oracle aggregates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle as samples
from tests.aggregations import networks, oracle

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
    inputs, outputs = networks.NETWORKS[network]()
    model = kpg.PerGradModel(inputs, outputs)
    mode = kpg.Vectorized(aggregation)
    sgd = keras.optimizers.SGD(1.0)
    model.compile(sgd, "mse", gradient_mode=mode, **arguments)
    return model, networks.data(inputs, outputs)


def _rows(model, x, y):
    """Return the samples' gradients of all variables, (n, P)."""
    columns = samples.per_sample_gradients(model, x, y)
    return np.concatenate([c.reshape(len(y), -1) for c in columns], 1)


def _flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


def _update(model, x, y):
    before = _flat(model.get_weights())
    given = {"batch_size": len(y), "shuffle": False, "verbose": 0}
    history = model.fit(x, y, **given).history
    return before - _flat(model.get_weights()), history


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation(float64, name):
    model, (x, y) = _model("dense", OBJECTS.get(name, name))
    rows = _rows(model, x, y)
    found, history = _update(model, x, y)
    np.testing.assert_allclose(found, AGGREGATIONS[name](rows), 1e-8, 1e-8)
    gramian = rows @ rows.T
    share = (gramian < 0).sum() / (len(y) * (len(y) - 1))
    assert history["conflict_share"] == [pytest.approx(share)]
    assert share > 0.1
    assert history["nonfinite_samples"] == [0]


@pytest.mark.parametrize("network", ["lstm", "convolution", "tied"])
def test_every_kind_of_network(float64, network):
    model, (x, y) = _model(network, "upgrad")
    rows = _rows(model, x, y)
    found, _ = _update(model, x, y)
    np.testing.assert_allclose(found, oracle.upgrad(rows), 1e-8, 1e-8)


def test_bert(float64):
    hub = pytest.importorskip("keras_hub").models
    backbone = hub.BertBackbone(20, 1, 2, 8, 8, dropout=0.0)
    pooled = backbone.output["pooled_output"]
    outputs = keras.layers.Dense(2)(pooled)
    model = kpg.PerGradModel(backbone.input, outputs)
    mode = kpg.Vectorized("upgrad")
    model.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
    rng = np.random.default_rng(0)
    shape = 5, 4
    x = {
        "token_ids": rng.integers(0, 20, shape),
        "padding_mask": np.ones(shape, "int32"),
        "segment_ids": rng.integers(0, 2, shape),
    }
    y = rng.normal(size=(5, 2))
    columns = samples.per_sample_gradients(model, x, y)
    rows = [c.reshape(5, -1) for c in columns if c is not None]
    found = model.trainable_variables
    before = [v.numpy() for v in found]
    model.fit(x, y, batch_size=5, verbose=0)
    moved = [b - v.numpy() for b, v in zip(before, found)]
    moved = [m for m, c in zip(moved, columns) if c is not None]
    expected = oracle.upgrad(np.concatenate(rows, 1))
    np.testing.assert_allclose(_flat(moved), expected, 1e-8, 1e-8)


@pytest.mark.parametrize("name", ["upgrad", "imtlg", "cagrad"])
@pytest.mark.parametrize("how", ["run_eagerly", "jit_compile"])
def test_eager_and_xla_are_as_the_graph(float64, name, how):
    model, (x, y) = _model("dense", name, **{how: True})
    rows = _rows(model, x, y)
    found, _ = _update(model, x, y)
    np.testing.assert_allclose(found, AGGREGATIONS[name](rows), 1e-8, 1e-8)


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


@pytest.mark.parametrize("name", ["upgrad", "mgda", "cagrad", "imtlg"])
def test_one_sample_is_its_own_gradient(float64, name):
    model, (x, y) = _model("dense", name)
    rows = _rows(model, x[:1], y[:1])
    found, history = _update(model, x[:1], y[:1])
    expected = AGGREGATIONS[name](rows) if name == "cagrad" else rows[0]
    np.testing.assert_allclose(found, expected, 1e-8, 1e-8)
    assert np.isnan(history["conflict_share"]).all()


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
    model.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
    rows = _rows(model, x, y)
    _, history = _update(model, x, y)
    norm = np.linalg.norm(rows.mean(0))
    assert history["gradient_norm"] == [pytest.approx(norm)]
    variance = rows.var(0, ddof=1).sum()
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
