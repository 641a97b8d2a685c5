"""What influence is not defined for is refused by name."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg

layers = keras.layers
X, Y = np.ones((6, 3)), np.ones((6, 1))


def _model(loss="mse", *more, **compiled):
    model = keras.Sequential([keras.Input((3,)), *more, layers.Dense(1)])
    model.compile("sgd", loss, **compiled)
    return model


def _message(model, ask=lambda i: i.scores(X, Y), **how):
    with pytest.raises(ValueError) as error:
        ask(kpg.influence.Influence(model, X, Y, verbose=0, **how))
    return str(error.value)


def test_arguments():
    model = _model()
    assert "'lissa'" in _message(model, curvature="lissa")
    assert "damping=-1" in _message(model, damping=-1)
    assert "damping=0.1" in _message(model, curvature="none", damping=0.1)
    assert "checkpoints=[]" in _message(model, checkpoints=[])
    assert "k=0" in _message(model, lambda i: i.top(X, Y, 0))
    text = _message(model, lambda i: i.save("nowhere"))
    assert "curvature='ekfac'" in text


def test_losses_that_are_no_mean():
    loss = keras.losses.MeanSquaredError(reduction="sum")
    assert "sum_over_batch_size" in _message(_model(loss))


def test_targets_that_cannot_be_drawn():
    text = _message(_model("mae"))
    assert "mean squared error" in text
    assert "'exact'" in text
    smooth = keras.losses.BinaryCrossentropy(label_smoothing=0.1)
    assert "label_smoothing=0.1" in _message(_model(smooth))


def test_regularisers_of_unknown_curvature():
    penalty = keras.regularizers.OrthogonalRegularizer()
    layer = layers.Dense(4, kernel_regularizer=penalty)
    text = _message(_model("mse", layer))
    assert "OrthogonalRegularizer" in text
    assert "kernel" in text


def test_layers_that_mix_samples():
    mixing = layers.Lambda(lambda t: t - keras.ops.mean(t, 0))
    text = _message(_model("mse", mixing), curvature="none")
    assert "mixes the samples" in text
    assert "lambda" in text


def test_weights_that_have_changed():
    model = _model()
    influence = kpg.influence.Influence(
        model, X, Y, curvature="none", verbose=0
    )
    influence.scores(X, Y)
    model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match="have changed"):
        influence.scores(X, Y)


@pytest.mark.parametrize("dense", [True, False])
def test_a_hessian_that_is_not_positive(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("keras_pergrad.influence.hessian.MAX_DENSE_SIZE", 0)
    model = _model("mse", layers.Dense(2, activation="tanh"))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), 10 * rng.normal(size=(6, 1))
    influence = kpg.influence.Influence(
        model, x, y, curvature="exact", verbose=0
    )
    with pytest.raises(ValueError, match=r"positive definite.*`damping`"):
        influence.scores(x, y)


def test_samples_that_are_not_finite_are_named():
    x = X.copy()
    x[4] = np.nan
    influence = kpg.influence.Influence(
        _model(), x, Y, curvature="none", batch_size=2, verbose=0
    )
    with pytest.raises(ValueError, match=r"samples 4, 5 are|samples 4 are"):
        influence.scores(X, Y)
