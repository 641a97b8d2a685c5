"""Blocks of K-FAC and EK-FAC: each bias in one, and closed forms."""

import itertools

import keras
import numpy as np
import pytest

from tests.influence.making import influence_of
from tests.marks import few
from tests.models.making import compiled, net, normal

layers = keras.layers
N = 20


def _scores(model, x, y, *, curvature, tests=N):
    """Scores of the first `tests` samples, and the blocks."""
    compiled(model)
    how = {"curvature": curvature, "damping": 0.1, "batch_size": 8}
    influence = influence_of(model, x, y, **how)
    first = keras.tree.map_structure(lambda t: t[:tests], [x, y])
    found = influence.scores(*first)
    curved = influence._estimators[0]._curvature
    if curvature == "exact":
        return found, None
    return found, [block.indices for block in curved._blocks]


def _cell(cell):
    return net(cell(3), shape=(3, 2), units=2)


def _wide(own_bias):
    wide, deep = keras.Input((4,)), keras.Input((2,))
    hidden = layers.Dense(5, "tanh")(deep)
    both = [
        layers.Dense(2)(wide),
        layers.Dense(2, use_bias=own_bias)(hidden),
    ]
    return keras.Model([wide, deep], layers.Add()(both))


def _gate():
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, "tanh")(inputs)
    gate = layers.Dense(1, "sigmoid")(inputs)
    return keras.Model(inputs, layers.Dense(2)(hidden * gate))


#: Name → the model, its first block.
MODELS = {
    "SimpleRNN": (lambda: _cell(layers.SimpleRNN), [0, 2]),
    "LSTM": (lambda: _cell(layers.LSTM), [0, 2]),
    "wide and deep": (lambda: _wide(True), [0, 1]),
    "one bias of two kernels": (lambda: _wide(False), [0, 1]),
    "a gate of one unit": (_gate, [0, 1]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_bias_is_in_one_block(float64, name):
    make, first = MODELS[name]
    model = make()
    x = [normal(N, *i.shape[1:]) for i in model.inputs]
    x = x if len(x) > 1 else x[0]
    y = normal(N, 2, seed=1)
    for curvature in ("kfac", "ekfac"):
        found, blocks = _scores(model, x, y, curvature=curvature)
        assert blocks[0] == first
        if name == "a gate of one unit":
            assert blocks == [[0, 1], [2, 3], [4, 5]]
        places = [k for block in blocks for k in block]
        assert sorted(places) == list(range(len(model.trainable_variables)))
        # (H + damping)⁻¹ is symmetric.
        np.testing.assert_allclose(found, found.T, 0, 1e-10 * found.max())


UNITS = [*itertools.product(["dense", "convolution"], [4, 1], [0.25, 0.0])]


@pytest.mark.parametrize(
    ("kind", "features", "l2"),
    few(UNITS, UNITS, killers=[UNITS[0], UNITS[4]]),
)
def test_one_unit_is_exact(float64, kind, features, *, l2):
    # One target a sample: the Gauss-Newton matrix of the mean square is
    # 2 / n Σ [x, 1] [x, 1]ᵀ, which is what K-FAC has of it.
    how = {"kernel_regularizer": keras.regularizers.L2(l2)} if l2 else {}
    if kind == "dense":
        model = net(layers.Dense(1, **how), shape=(features,), units=None)
    else:
        parts = layers.Conv2D(1, 3, **how), layers.Flatten()
        model = net(*parts, shape=(3, 3, features), units=None)
    x, y = normal(N, *model.input_shape[1:]), normal(N, 1, seed=1)
    rows = np.concatenate([x.reshape(N, -1), np.ones((N, 1))], 1)
    size = rows.shape[1]
    matrix = 2 * rows.T @ rows / N + 0.1 * np.eye(size)
    matrix += np.diag([2 * l2] * (size - 1) + [0])
    gradients = 2 * (np.array(model(x)) - y) * rows
    expected = gradients @ np.linalg.solve(matrix, gradients.T) / N
    for curvature in ("exact", "kfac", "ekfac"):
        found, blocks = _scores(model, x, y, curvature=curvature, tests=2)
        assert blocks in (None, [[0, 1]])
        np.testing.assert_allclose(found, expected[:2], 1e-9, 1e-12)


@pytest.mark.parametrize("curvature", ["exact", "ekfac", "kfac", "projected"])
def test_damping_that_leaves_rounding_is_refused(curvature):
    """One unit of four inputs and a bias: three samples are too few."""
    model = compiled(net(shape=(4,), units=1))
    x, y = normal(N, 4), normal(N, 1, seed=1)

    def scores(n, damping):
        how = {"curvature": curvature, "damping": damping}
        influence = influence_of(model, x[:n], y[:n], **how)
        return influence.scores(x[-4:], y[-4:])

    for damping in (0.0, 1e-12):
        with pytest.raises(ValueError, match="definite, beyond rounding"):
            scores(3, damping)
    assert np.isfinite(scores(3, 1e-3)).all()
    rows = np.concatenate([x, np.ones((N, 1))], 1)
    gradients = 2 * (np.array(model(x)) - y) * rows
    matrix = 2 * rows.T @ rows / N
    if curvature == "projected":
        matrix = gradients.T @ gradients / N
    expected = gradients[-4:] @ np.linalg.solve(matrix, gradients.T) / N
    if curvature != "projected":  # Of fewer numbers than there are weights.
        np.testing.assert_allclose(scores(N, 0.0), expected, 1e-2, 1e-3)
    assert np.abs(scores(N, 0.0)).max() < 10 * np.abs(expected).max()
