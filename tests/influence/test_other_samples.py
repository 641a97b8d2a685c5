"""Scores do not depend on how samples come together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.influence.making import gradient_of, influence_of
from tests.influence.test_refusals import Added
from tests.models.making import compiled, net, normal

layers, ops = keras.layers, keras.ops
N = 8
X, Y = (np.random.default_rng(k).normal(size=(N, 4 - k)) for k in (0, 1))


def _model(*middle, loss="mse"):
    hidden = layers.Dense(3, "tanh")
    return compiled(net(hidden, *middle, shape=(4,)), loss=loss)


MEANS = {
    "add_loss": lambda: _model(Added(ops.mean)),
    "function": lambda: _model(loss=lambda t, p: ops.mean(ops.square(t - p))),
    "by sample": lambda: _model(
        loss=lambda t, p: ops.sum(ops.square(t - p), -1)
    ),
    "regulariser": lambda: _model(
        layers.Dense(3, kernel_regularizer="l2"), loss="mae"
    ),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_have_one_answer(float64, name):
    model = MEANS[name]()
    whole, parts = (
        influence_of(model, X, Y, batch_size=size).scores(X[:3], Y[:3])
        for size in (N, 3)
    )
    np.testing.assert_allclose(whole, parts, 1e-10, 1e-12)


@pytest.mark.parametrize("curvature", ["none", "projected"])
@pytest.mark.parametrize("as_data_set", [False, True])
def test_a_masked_test_sample_is_alone(float64, as_data_set, curvature):
    x, y = normal(N, 4, 2), normal(N, 4, 3, seed=1)
    x[1, 2:], x[2, 1:] = 0, 0
    model = compiled(net(layers.Masking(), shape=(4, 2)))
    influence = influence_of(model, x, y, curvature=curvature)
    alone = [influence.scores(x[k : k + 1], y[k : k + 1]) for k in range(4)]
    given = x[:4], y[:4]
    if as_data_set:
        given = (tf.data.Dataset.from_tensor_slices(given).batch(4),)
    found = influence.scores(*given)
    np.testing.assert_allclose(found, np.concatenate(alone), 1e-10, 1e-12)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_the_empirical_fisher_of_any_batches(float64, reduction):
    loss = keras.losses.MeanAbsoluteError(reduction=reduction)
    model = _model(loss=loss)
    rows = [
        gradient_of(model, lambda x=x, y=y: loss(y[None], model(x[None])))
        for x, y in zip(X, Y)
    ]
    expected = np.square(rows).mean(0)
    for size in (N, 3):
        found = kpg.influence.fisher(
            model, X, Y, labels="data", batch_size=size, verbose=0
        )
        parts = np.concatenate([p.ravel() for p in found.parts])
        np.testing.assert_allclose(parts, expected, 1e-10)
