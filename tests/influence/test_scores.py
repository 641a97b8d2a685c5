"""Scores against matrices that are written out, in float64."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
from tests.influence.making import (
    assert_near,
    influence_of,
    rows_of,
    two_checkpoints,
)
from tests.models.making import assert_equal, compiled, net, weights
from tests.modes.big_batch import Batches

layers = keras.layers
KINDS = ("none", "exact", "kfac", "ekfac", "projected")


def _data(n=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.integers(0, 3, n)


def _model():
    penalty = keras.regularizers.L2(0.1)
    model = net(
        layers.Dense(4, activation="tanh", kernel_regularizer=penalty),
        layers.Dense(3, kernel_regularizer=penalty),
        shape=(3,),
        units=None,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(model, loss=loss)


def _influence(model, *data, curvature="none", **how):
    if curvature != "none":
        how = {"damping": 0.5, **how}
    return influence_of(model, *data, curvature=curvature, **how)


def _rows(model, x, y, *, weight=None):
    return rows_of(
        oracle.per_sample_gradients(model, x, tf.constant(y), weight)
    )


def _hessian(model, x, y):
    """Of the mean loss and the regularisers, by second derivatives."""
    values = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = model.compute_loss(x, y, model(x), None)
        first = tf.concat(
            [tf.reshape(g, [-1]) for g in inner.gradient(loss, values)], 0
        )
    parts = outer.jacobian(first, values)
    return np.concatenate([np.reshape(p, (len(first), -1)) for p in parts], 1)


def _mean_square(model, x, y):
    rows = _rows(model, x, y)
    return rows.T @ rows / len(x)


#: Name → its matrix without damping, settings, digits of scores.
MATRICES = {
    "exact": (_hessian, {"curvature": "exact"}, 1e-10),
    "exact, by products": (_hessian, {"curvature": "exact"}, 1e-6),
    "projected": (
        _mean_square,
        {"curvature": "projected", "damping": 0.01, "projection_size": 31},
        1e-5,
    ),
}


@pytest.mark.parametrize("name", MATRICES)
def test_scores_solve_with_the_matrix(float64, name, monkeypatch):
    if name == "exact, by products":
        monkeypatch.setattr("keras_pergrad.influence.hessian.MAX_DENSE_SIZE", 0)
    of, how, digits = MATRICES[name]
    model, (x, y), (xt, yt) = _model(), _data(), _data(5, 1)
    matrix = of(model, x, tf.constant(y))
    matrix += how.get("damping", 0.5) * np.eye(31)
    train, test = _rows(model, x, y), _rows(model, xt, yt)
    expected = test @ np.linalg.solve(matrix, train.T) / len(x)
    # Batches of 5, 5 and 2.
    influence = _influence(model, x, y, batch_size=5, **how)
    found = influence.scores(xt, yt)
    assert_near(found, expected, digits)
    own = np.sum(train * np.linalg.solve(matrix, train.T).T, 1) / len(x)
    np.testing.assert_allclose(influence.self_influence(), own, digits)


def test_none_is_the_gram_matrix_and_weights_count(float64):
    model, (x, y), (xt, yt) = _model(), _data(), _data(5, 1)
    weight = np.linspace(0, 2, len(x))
    train = _rows(model, x, y, weight=tf.constant(weight))
    expected = _rows(model, xt, yt) @ train.T / len(x)
    influence = _influence(model, x, y, sample_weight=weight, batch_size=5)
    np.testing.assert_allclose(influence.scores(xt, yt), expected, 1e-10)
    assert not expected[:, 0].any()


@pytest.mark.parametrize("curvature", KINDS)
def test_every_kind_of_data_gives_the_same(curvature):
    model, (x, y) = _model(), _data()
    how = {"curvature": curvature}
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    right = _influence(model, x, y, batch_size=4, **how).scores(x, y)
    assert right.shape == (12, 12)
    assert np.isfinite(right).all()
    for data in (dataset, Batches((x, y), [4, 4, 4])):
        found = _influence(model, data, **how).scores(data)
        np.testing.assert_allclose(found, right, 1e-4, 1e-7)


@pytest.mark.parametrize("curvature", KINDS)
def test_the_model_is_left_as_it_is_and_checkpoints_add_up(curvature, tmp_path):
    model, (x, y) = _model(), _data()

    def scores(**how):
        influence = _influence(model, x, y, curvature=curvature, **how)
        return influence.scores(x[:3], y[:3])

    paths, expected = two_checkpoints(
        model, x, y, scores=scores, folder=tmp_path
    )
    before = weights(model)
    np.testing.assert_allclose(scores(checkpoints=paths), expected, 1e-4, 1e-7)
    assert_equal(model, before)


FACTORS = "Kronecker factors of the curvature"
SCORES = "Scores of the training samples"
PASSES = {
    "exact": ["Hessian", SCORES],
    "ekfac": [FACTORS, "Eigenvalues of the curvature", SCORES],
    "projected": ["Projected gradients"],
}


@pytest.mark.parametrize("curvature", PASSES)
def test_each_pass_over_the_data_has_a_name(curvature, capsys):
    x, y = _data()
    how = {"curvature": curvature, "batch_size": 6, "verbose": 2}
    _influence(_model(), x, y, **how).scores(x[:2], y[:2])
    printed = capsys.readouterr().out
    names = re.findall(r"^[A-Z][a-z A-Z]+$", printed, re.MULTILINE)
    assert names == PASSES[curvature]


def test_top_is_sorted_both_ways():
    model, (x, y) = _model(), _data()
    influence = _influence(model, x, y)
    scores = influence.scores(x[:2], y[:2])
    best = influence.top(x[:2], y[:2], k=3)
    np.testing.assert_array_equal(best.scores, -np.sort(-scores)[:, :3])
    worst = influence.top(x[:2], y[:2], k=3, helpful=False)
    np.testing.assert_array_equal(worst.samples[:, 0], scores.argmin(1))
    np.testing.assert_array_equal(worst.scores, np.sort(scores)[:, :3])
