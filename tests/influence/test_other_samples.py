"""Scores do not depend on how samples come together, or are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg

layers, ops = keras.layers, keras.ops
N = 8


@keras.saving.register_keras_serializable("tests")
class _Added(layers.Layer):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def call(self, x):
        self.add_loss(1e-3 * self.how(ops.sum(ops.square(x), -1)))
        return x


def _model(*middle):
    return keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, "tanh"), *middle, layers.Dense(3)]
    )


def _data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 4)), rng.normal(size=(N, 3))


SUMS = {
    "add_loss": (lambda: _model(_Added(ops.sum)), "mse"),
    "function": (_model, lambda t, p: ops.sum(ops.square(t - p))),
    "norm": (_model, lambda t, p: ops.norm(t - p)),
    "beside a mean": (
        lambda: _model(_Added(ops.mean), _Added(ops.sum)),
        "mse",
    ),
    "class": (_model, keras.losses.MeanSquaredError(reduction="sum")),
}
MEANS = {
    "add_loss": (lambda: _model(_Added(ops.mean)), "mse"),
    "function": (_model, lambda t, p: ops.mean(ops.square(t - p))),
    "by sample": (_model, lambda t, p: ops.sum(ops.square(t - p), -1)),
    "regulariser": (
        lambda: _model(layers.Dense(3, kernel_regularizer="l2")),
        "mae",
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_the_batch_are_refused(float64, name):
    make, loss = SUMS[name]
    model = make()
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="adds up over the batch"):
        kpg.influence.Influence(model, *_data(), verbose=0)


@pytest.mark.parametrize("name", MEANS)
def test_means_have_one_answer(float64, name):
    make, loss = MEANS[name]
    model = make()
    model.compile("sgd", loss)
    x, y = _data()
    whole, parts = (
        kpg.influence.Influence(
            model, x, y, curvature="none", batch_size=size, verbose=0
        ).scores(x[:3], y[:3])
        for size in (N, 3)
    )
    np.testing.assert_allclose(whole, parts, 1e-10, 1e-12)


@pytest.mark.parametrize("curvature", ["none", "projected"])
@pytest.mark.parametrize("as_data_set", [False, True])
def test_a_masked_test_sample_is_alone(float64, as_data_set, curvature):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, 4, 2)), rng.normal(size=(N, 4, 3))
    x[1, 2:], x[2, 1:] = 0, 0
    inputs = keras.Input((4, 2))
    model = keras.Model(inputs, layers.Dense(3)(layers.Masking()(inputs)))
    model.compile("sgd", "mse")
    influence = kpg.influence.Influence(
        model, x, y, curvature=curvature, verbose=0
    )
    alone = [influence.scores(x[k : k + 1], y[k : k + 1]) for k in range(4)]
    given = x[:4], y[:4]
    if as_data_set:
        given = (tf.data.Dataset.from_tensor_slices(given).batch(4),)
    found = influence.scores(*given)
    np.testing.assert_allclose(found, np.concatenate(alone), 1e-10, 1e-12)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_the_empirical_fisher_of_any_batches(float64, reduction):
    x, y = _data()
    model = _model()
    loss = keras.losses.MeanAbsoluteError(reduction=reduction)
    model.compile("sgd", loss)
    rows = []
    for k in range(N):
        with tf.GradientTape() as tape:
            value = loss(y[k : k + 1], model(x[k : k + 1]))
        values = [v.value for v in model.trainable_variables]
        gradients = tape.gradient(value, values)
        rows.append(np.concatenate([np.ravel(g) for g in gradients]))
    expected = np.square(rows).mean(0)
    for size in (N, 3):
        found = kpg.influence.fisher(
            model, x, y, labels="data", batch_size=size, verbose=0
        )
        parts = np.concatenate([p.ravel() for p in found.parts])
        np.testing.assert_allclose(parts, expected, 1e-10)
