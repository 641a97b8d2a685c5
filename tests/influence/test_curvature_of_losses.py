"""The curvature from predicted targets against the Hessian, where both agree.

With one input for all, one layer and these losses, the Gauss-Newton matrix is
the Hessian, and its Kronecker products are exact; signs of targets are drawn,
so that both are equal as far as the samples tell.
"""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg

layers, losses = keras.layers, keras.losses
N, T = 3000, 4
RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 3, N)
POINT = np.tile([[0.5, -1.0]], (N, 1))
LINE = np.tile(POINT[:, None], (1, T, 1))
BY_LINE = RNG.integers(0, 3, (N, T))


def _sparse(**how):
    return losses.SparseCategoricalCrossentropy(from_logits=True, **how)


def _model(loss, shape=(2,), units=3, activation=None, before=(), **how):
    keras.utils.set_random_seed(1)
    dense = layers.Dense(units, activation=activation, **how)
    model = keras.Sequential([keras.Input(shape), *before, dense])
    model.compile("sgd", loss)
    return model


def _bias_apart():
    penalty = keras.regularizers.L2(0.2)
    return _model(_sparse(), kernel_regularizer=penalty), POINT, CLASSES, None


def _softmax():
    name = "sparse_categorical_crossentropy"
    return _model(name, activation="softmax"), POINT, CLASSES, None


def _several_channels():
    y = np.eye(3)[CLASSES]
    return _model("binary_crossentropy", activation="sigmoid"), POINT, y, None


def _integer_targets():
    return _model("mse"), POINT, np.eye(3, dtype="int32")[CLASSES], None


def _zero_weights():
    weight = np.where(np.arange(N) % 3, 1.5, 0.0)
    return _model(_sparse()), POINT, CLASSES, weight


def _several_channels_of_logits():
    loss = losses.BinaryCrossentropy(from_logits=True)
    return _model(loss), POINT, np.eye(3)[CLASSES], None


def _one_class():
    """Nothing is learned of it; its targets are drawn all the same."""
    return _model(_sparse(), units=1), POINT, CLASSES * 0, None


def _weights_in_the_mean():
    loss = _sparse(reduction="mean_with_sample_weight")
    return _model(loss), POINT, CLASSES, np.linspace(0, 2, N)


def _positions():
    return _model(_sparse(), (T, 2)), LINE, BY_LINE, None


def _weights_of_positions():
    weight = np.tile([1.0, 0.0, 2.0, 0.5], (N, 1))
    return _model(_sparse(), (T, 2)), LINE, BY_LINE, weight


def _masks():
    x = np.where(np.arange(T)[:, None] < 2, LINE, 0)
    # The bias would see ones where the mask has none.
    how = {"before": [layers.Masking()], "use_bias": False}
    return _model(_sparse(), (T, 2), **how), x, BY_LINE, None


def _convolution():
    model = keras.Sequential([keras.Input((2, 2, 2)), layers.Conv2D(3, 2)])
    model.compile("sgd", _sparse())
    return model, LINE.reshape(N, 2, 2, 2), CLASSES[:, None, None], None


def _table():
    rows = [keras.Input((1,)), layers.Embedding(4, 3), layers.Flatten()]
    model = keras.Sequential(rows)
    model.compile("sgd", _sparse())
    return model, np.full((N, 1), 2), CLASSES, None


def _two_outputs():
    keras.utils.set_random_seed(1)
    x = keras.Input((2,))
    outputs = [layers.Dense(3, name="a")(x), layers.Dense(2, name="b")(x)]
    model = keras.Model(x, outputs)
    model.compile("sgd", [_sparse(), "mse"])
    return model, POINT, [CLASSES, RNG.normal(size=(N, 2))], None


CASES = [
    _bias_apart,
    _softmax,
    _several_channels,
    _several_channels_of_logits,
    _one_class,
    _integer_targets,
    _zero_weights,
    _weights_in_the_mean,
    _positions,
    _weights_of_positions,
    _masks,
    _convolution,
    _table,
    _two_outputs,
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__[1:])
def test_it_is_the_hessian_of_the_compiled_loss(case):
    model, x, y, weight = case()
    tests = x[:8], y[:8] if isinstance(y, np.ndarray) else [t[:8] for t in y]

    def scores(curvature):
        how = {"curvature": curvature, "damping": 0.05, "batch_size": N}
        influence = kpg.influence.Influence(
            model, x, y, weight, verbose=0, **how
        )
        return influence.scores(*tests)

    right = scores("exact")
    limit = 0.05 * np.abs(right).max()
    # K-FAC is exact where all positions have the same input.
    for curvature in ("ekfac",) if case is _masks else ("ekfac", "kfac"):
        found = scores(curvature)
        np.testing.assert_allclose(found, right, rtol=0, atol=limit)
