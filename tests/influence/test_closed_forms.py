"""Scores of one linear unit, whose curvature is known."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg

layers = keras.layers


@pytest.mark.usefixtures("float64")
def test_scores_of_one_unit():
    """A kernel with a regulariser and its bias, in batches of 3, 3 and 1."""
    n, l2, damping = 7, 0.25, 0.1
    inputs = keras.Input((2, 2, 1))
    convolution = layers.Conv2D(
        1, 2, kernel_regularizer=keras.regularizers.L2(l2)
    )
    model = keras.Model(inputs, layers.Flatten()(convolution(inputs)))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, 2, 2, 1)), rng.normal(size=(n, 1))
    rows = np.concatenate([x.reshape(n, -1), np.ones((n, 1))], 1)
    hessian = 2 * rows.T @ rows / n
    hessian += np.diag([2 * l2] * 4 + [0]) + damping * np.eye(5)
    gradients = 2 * (np.array(model(x)) - y) * rows
    right = gradients @ np.linalg.solve(hessian, gradients.T) / n
    for curvature in ("exact", "ekfac"):
        influence = kpg.influence.Influence(
            model,
            x,
            y,
            curvature=curvature,
            damping=damping,
            batch_size=3,
            verbose=0,
        )
        found = influence.scores(x[:2], y[:2])
        np.testing.assert_allclose(found, right[:2], 1e-9, 1e-12)
