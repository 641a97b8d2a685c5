"""Blocks of K-FAC and EK-FAC: each bias in one, and closed forms."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg

layers = keras.layers
N = 20


def _scores(model, x, y, curvature, damping=0.1):
    influence = kpg.influence.Influence(
        model, x, y, curvature=curvature, damping=damping, verbose=0
    )
    found = influence.scores(x, y)
    curved = influence._estimators[0]._curvature
    return found, [block.indices for block in curved._blocks]


def _cell(cell):
    inputs = keras.Input((3, 2))
    return keras.Model(inputs, layers.Dense(2)(cell(3)(inputs)))


def _wide(own_bias):
    wide, deep = keras.Input((4,)), keras.Input((2,))
    hidden = layers.Dense(5, "tanh")(deep)
    both = [
        layers.Dense(2)(wide),
        layers.Dense(2, use_bias=own_bias)(hidden),
    ]
    return keras.Model([wide, deep], layers.Add()(both))


MODELS = {
    "SimpleRNN": (lambda: _cell(layers.SimpleRNN), [0, 2]),
    "LSTM": (lambda: _cell(layers.LSTM), [0, 2]),
    "wide and deep": (lambda: _wide(True), [0, 1]),
    "one bias of two kernels": (lambda: _wide(False), [0, 1]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_bias_is_in_one_block(float64, name):
    make, first = MODELS[name]
    model = make()
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(N, *i.shape[1:])) for i in model.inputs]
    x = x if len(x) > 1 else x[0]
    y = rng.normal(size=(N, 2))
    model.compile("sgd", "mse")
    for curvature in ("kfac", "ekfac"):
        found, blocks = _scores(model, x, y, curvature)
        assert blocks[0] == first
        places = [k for block in blocks for k in block]
        assert sorted(places) == list(range(len(model.trainable_variables)))
        # (H + damping)⁻¹ is symmetric.
        np.testing.assert_allclose(found, found.T, 0, 1e-10 * found.max())


@pytest.mark.parametrize("features", [1, 4])
@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_one_unit_is_exact(float64, kind, features):
    # One target a sample: the Gauss-Newton matrix of the mean square is
    # 2 / n Σ [x, 1] [x, 1]ᵀ, which is what K-FAC has of it.
    rng = np.random.default_rng(0)
    if kind == "dense":
        inputs = keras.Input((features,))
        outputs = layers.Dense(1)(inputs)
    else:
        inputs = keras.Input((3, 3, features))
        outputs = layers.Flatten()(layers.Conv2D(1, 3)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    x, y = rng.normal(size=(N, *inputs.shape[1:])), rng.normal(size=(N, 1))
    rows = np.concatenate([x.reshape(N, -1), np.ones((N, 1))], 1)
    errors = np.array(model(x)) - y
    matrix = 2 * rows.T @ rows / N + 0.1 * np.eye(rows.shape[1])
    gradients = 2 * errors * rows
    expected = gradients @ np.linalg.solve(matrix, gradients.T) / N
    for curvature in ("kfac", "ekfac"):
        found, blocks = _scores(model, x, y, curvature)
        assert blocks == [[0, 1]]
        np.testing.assert_allclose(found, expected, 1e-9, 1e-12)


def test_a_gate_of_one_unit_takes_no_other_bias(float64):
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, "tanh")(inputs)
    gate = layers.Dense(1, "sigmoid")(inputs)
    model = keras.Model(inputs, layers.Dense(2)(hidden * gate))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(N, 4)), rng.normal(size=(N, 2))
    found, blocks = _scores(model, x, y, "kfac")
    assert blocks == [[0, 1], [2, 3], [4, 5]]
    np.testing.assert_allclose(found, found.T, 0, 1e-10 * found.max())
