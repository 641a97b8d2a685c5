"""What influence is not defined for is refused by name."""

import keras
import numpy as np
import pytest

from tests.influence.making import influence_of
from tests.models.making import compiled, net, normal

layers, losses, ops = keras.layers, keras.losses, keras.ops
X, Y = np.ones((6, 3)), np.ones((6, 1))


@keras.saving.register_keras_serializable("tests")
class Added(layers.Layer):
    """Adds to the loss what `how` makes of a number for each sample."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def call(self, x):
        self.add_loss(1e-3 * self.how(ops.sum(ops.square(x), -1)))
        return x


def _model(*parts, loss="mse"):
    return compiled(net(*parts, shape=(3,), units=1), loss=loss)


def _influence(model, x=X, y=Y, curvature="ekfac", **how):
    return influence_of(model, x, y, curvature=curvature, **how)


def _smooth():
    return _model(loss=losses.BinaryCrossentropy(label_smoothing=0.1))


def _orthogonal():
    penalty = keras.regularizers.OrthogonalRegularizer()
    return _model(layers.Dense(4, kernel_regularizer=penalty))


def _mixing():
    return _model(layers.Lambda(lambda t: t - ops.mean(t, 0)))


def _sum_of_squares():
    return _model(loss=lambda t, p: ops.sum(ops.square(t - p)))


NONE = {"curvature": "none"}
SUM = ["adds up over the batch"]
#: Name → model, settings, what the message says.
REFUSED = {
    "unknown curvature": (_model, {"curvature": "lissa"}, ["'lissa'"]),
    "negative damping": (_model, {"damping": -1}, ["damping=-1"]),
    "damping of nothing": (_model, {**NONE, "damping": 0.1}, ["damping=0.1"]),
    "no checkpoint": (_model, {"checkpoints": []}, ["checkpoints=[]"]),
    "targets that cannot be drawn": (
        lambda: _model(loss="mae"),
        {},
        ["mean squared error", "'exact'"],
    ),
    "smooth labels": (_smooth, {}, ["label_smoothing=0.1"]),
    "a regulariser of unknown curvature": (
        _orthogonal,
        {},
        ["OrthogonalRegularizer", "kernel"],
    ),
    "mixed samples": (_mixing, NONE, ["mixes the samples", "lambda"]),
    "a sum by its name": (
        lambda: _model(loss=losses.MeanSquaredError(reduction="sum")),
        {},
        [*SUM, "sum_over_batch_size"],
    ),
    "a sum in a function": (_sum_of_squares, {}, SUM),
    "a norm": (lambda: _model(loss=lambda t, p: ops.norm(t - p)), {}, SUM),
    "a sum that is added": (lambda: _model(Added(ops.sum)), {}, SUM),
    "a sum beside a mean": (
        lambda: _model(Added(ops.mean), Added(ops.sum)),
        {},
        SUM,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_influence_is_refused(name):
    make, how, said = REFUSED[name]
    with pytest.raises(ValueError) as error:
        _influence(make(), **how).scores(X, Y)
    for words in said:
        assert words in str(error.value)


def test_what_cannot_be_answered_is_refused():
    model = _model()
    with pytest.raises(ValueError, match="k=0"):
        _influence(model).top(X, Y, 0)
    with pytest.raises(ValueError, match="curvature='ekfac'"):
        _influence(model).save("nowhere")
    x = X.copy()
    x[4] = np.nan
    broken = _influence(model, x, batch_size=2, **NONE)
    with pytest.raises(ValueError, match=r"samples 4, 5 are|samples 4 are"):
        broken.scores(X, Y)


@pytest.mark.parametrize("dense", [True, False])
def test_a_hessian_that_is_not_positive(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("keras_pergrad.influence.hessian.MAX_DENSE_SIZE", 0)
    model = _model(layers.Dense(2, activation="tanh"))
    x, y = normal(6, 3), 10 * normal(6, 1, seed=1)
    influence = _influence(model, x, y, curvature="exact")
    with pytest.raises(ValueError, match=r"positive definite.*`damping`"):
        influence.scores(x, y)
