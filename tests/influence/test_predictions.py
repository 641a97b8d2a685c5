"""Scores of predictions, whose labels nobody needs to know."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import oracle
from tests.influence.making import (
    gradient_of,
    influence_of,
    rows_of,
    two_checkpoints,
)
from tests.models.making import compiled, net, normal

layers, losses = keras.layers, keras.losses


def _log_p(output):
    return tf.reduce_max(tf.nn.log_softmax(output))


def _log_p_of_sigmoid(output):
    p = output[0]
    return tf.math.log(tf.maximum(p, 1 - p))


def _log_p_of_softmax(output):
    return tf.math.log(tf.reduce_max(output))


#: Name → units, activation, loss, training targets, what is asked for.
MODELS = {
    "indices, logits": (
        (3, None),
        losses.SparseCategoricalCrossentropy,
        np.arange(9) % 3,
        _log_p,
    ),
    "one-hot, softmax": (
        (3, "softmax"),
        "categorical_crossentropy",
        np.eye(3)[np.arange(9) % 3],
        _log_p_of_softmax,
    ),
    "binary": (
        (1, "sigmoid"),
        "binary_crossentropy",
        np.arange(9)[:, None] % 2,
        _log_p_of_sigmoid,
    ),
    "regression": ((1, None), "mse", normal(9, 1), tf.squeeze),
}


def _model(name):
    """A small model of the table, its targets, and what is asked for."""
    last, loss, y, value = MODELS[name]
    # Made here, for the precision of the test.
    loss = loss if isinstance(loss, str) else loss(from_logits=True)
    parts = layers.Dense(4, activation="tanh"), layers.Dense(*last)
    return compiled(net(*parts, shape=(3,), units=None), loss=loss), y, value


@pytest.mark.parametrize("name", MODELS)
def test_a_score_is_of_what_the_model_says(float64, name):
    model, y, value = _model(name)
    x, x_test = normal(9, 3), 3 * normal(5, 3, seed=1)
    influence = influence_of(model, x, y)
    found = influence.scores(x_test, of="prediction")
    train = rows_of(oracle.per_sample_gradients(model, x, tf.constant(y), None))
    test = [
        gradient_of(model, lambda one=one: value(model(one[None])[0]))
        for one in x_test
    ]
    # Positive: a step on j's loss raises the value.
    expected = np.array(test) @ -train.T / 9
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_a_linear_regression_is_trained_again_without_each_sample(float64):
    n, ridge = 200, 0.1
    x, x_test = normal(n, 3), normal(4, 3, seed=1)
    y = x @ [[1.0], [-2.0], [0.5]] + 5 + 0.3 * normal(n, 1, seed=2)

    def weights(rows):
        # Of the mean over all n: a sample left out has the weight 0.
        a = np.c_[x, np.ones(n)][rows]
        hessian = 2 * a.T @ a / n + 2 * ridge * np.diag([1, 1, 1, 0])
        return np.linalg.solve(hessian, 2 * a.T @ y[rows] / n)

    layer = layers.Dense(1, kernel_regularizer=keras.regularizers.L2(ridge))
    model = compiled(net(layer, shape=(3,), units=None))
    all_rows = np.arange(n)
    whole = weights(all_rows)
    model.set_weights([whole[:3], whole[3]])
    design = np.c_[x_test, np.ones(4)]
    fell = np.array(
        [design @ (whole - weights(all_rows != j))[:, 0] for j in range(n)]
    ).T
    influence = influence_of(model, x, y, curvature="exact")
    found = influence.scores(x_test, of="prediction")
    # To first order: leaving one out of 200 changes the Hessian, too.
    limit = 0.003 * np.abs(fell).max()
    np.testing.assert_allclose(found, fell, rtol=0.1, atol=limit)
    data = tf.data.Dataset.from_tensor_slices((x_test, y[:4])).batch(3)
    again = influence.scores(data, of="prediction")
    np.testing.assert_allclose(again, found, 1e-10)


@pytest.mark.parametrize("curvature", ["none", "projected"])
def test_checkpoints_are_asked_for_the_prediction_of_now(curvature, tmp_path):
    model = compiled(net(shape=(3,), units=1), loss="mse")
    x, y = normal(9, 3), normal(9, 1, seed=1)

    def scores(**how):
        influence = influence_of(model, x, y, curvature=curvature, **how)
        return influence.scores(x[:3], of="prediction")

    paths, expected = two_checkpoints(
        model, x, y, scores=scores, folder=tmp_path
    )
    np.testing.assert_allclose(scores(checkpoints=paths), expected, 1e-4, 1e-6)


def test_top_and_page_take_it(tmp_path):
    model, y, _ = _model("indices, logits")
    x = normal(9, 3)
    influence = influence_of(model, x, y)
    best = influence.top(x[:2], k=3, of="prediction")
    scores = influence.scores(x[:2], of="prediction")
    np.testing.assert_array_equal(best.scores, -np.sort(-scores)[:, :3])
    path = tmp_path / "page.html"
    names = ["ant", "bee", "cat"]
    influence.page(path, x[:2], k=3, of="prediction", class_names=names)
    text = path.read_text()
    assert text.count("for the prediction") == 2
    assert "in nats" in text
    said = [names[k] for k in np.argmax(model(x[:2]), 1)]
    assert [f"prediction {name}" in text for name in said] == [True, True]


@pytest.mark.parametrize(
    ("units", "loss"), [([1, 1], "mse"), ([2], "mse"), ([1], "mae")]
)
def test_what_is_no_single_prediction_is_refused(units, loss):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, [layers.Dense(n)(inputs) for n in units])
    compiled(model, loss=[loss] * len(units))
    y = [np.ones((6, n)) for n in units]
    influence = influence_of(model, np.ones((6, 3)), y)
    with pytest.raises(ValueError, match=r"of='prediction'.*of='loss'"):
        influence.scores(np.ones((2, 3)), of="prediction")


def test_targets_of_a_prediction_are_refused():
    x, y = np.ones((6, 3)), np.ones((6, 1))
    model = compiled(net(shape=(3,), units=1), loss="mse")
    influence = influence_of(model, x, y)
    with pytest.raises(ValueError, match="y_test=None"):
        influence.scores(x, y, of="prediction")
    with pytest.raises(ValueError, match="sample_weight=None"):
        influence.top(x, sample_weight=np.ones(6), of="prediction")
    with pytest.raises(ValueError, match="'prediction'"):
        influence.scores(x, y, of="label")
