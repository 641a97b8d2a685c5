"""The curvature from predicted targets against the Hessian, where both agree.

With one input for all, one layer and these losses, the Gauss-Newton matrix is
the Hessian, and its Kronecker products are exact; signs of targets are drawn,
so that both are equal as far as the samples tell.
"""

import keras
import numpy as np
import pytest

from tests.influence.making import assert_near, influence_of
from tests.models.making import compiled, net

layers, losses = keras.layers, keras.losses
N, T = 3000, 4
RNG = np.random.default_rng(0)
CLASSES = RNG.integers(0, 3, N)
CHANNELS = np.eye(3, dtype="int32")[CLASSES]
ONE = np.ones((N, 1))
POINT = np.tile([[0.5, -1.0]], (N, 1))
LINE = np.tile(POINT[:, None], (1, T, 1))
BY_LINE = RNG.integers(0, 3, (N, T))
TWO_OF_LINE = np.where(np.arange(T)[:, None] < 2, LINE, 0)
EVERY_THIRD = np.where(np.arange(N) % 3, 1.5, 0.0)
LINEAR = np.linspace(0, 2, N)
BY_PLACE = np.tile([1.0, 0.0, 2.0, 0.5], (N, 1))
SPARSE = losses.SparseCategoricalCrossentropy(True)
WEIGHTED_MEAN = losses.SparseCategoricalCrossentropy(
    True, reduction="mean_with_sample_weight"
)
LOGITS = losses.BinaryCrossentropy(True)
L2 = {"kernel_regularizer": keras.regularizers.L2(0.2)}
NO_BIAS = {"use_bias": False}


def _dense(loss=SPARSE, before=(), units=3, **how):
    return lambda: ([*before, layers.Dense(units, **how)], loss)


def _masks():
    # The bias would see ones where the mask has none.
    return [layers.Masking(), layers.Dense(3, use_bias=False)], SPARSE


def _convolution():
    return [layers.Reshape((2, 2, 2)), layers.Conv2D(3, 2)], SPARSE


def _table():
    return [layers.Embedding(4, 3), layers.Flatten()], SPARSE


def _two_outputs():
    def both(x):
        return [layers.Dense(3, name="a")(x), layers.Dense(2, name="b")(x)]

    return [both], [SPARSE, "mse"]


#: Name → layers and loss, inputs, targets, weights.
CASES = {
    "bias apart": (_dense(**L2), POINT, CLASSES, None),
    "softmax": (
        _dense("sparse_categorical_crossentropy", activation="softmax"),
        *(POINT, CLASSES, None),
    ),
    "several channels": (
        _dense("binary_crossentropy", activation="sigmoid"),
        *(POINT, CHANNELS * 1.0, None),
    ),
    "channels of logits": (_dense(LOGITS), POINT, CHANNELS * 1.0, None),
    # Nothing is learned of one class; its targets are drawn all the same.
    "one class": (_dense(units=1), POINT, CLASSES * 0, None),
    "integer targets": (_dense("mse"), POINT, CHANNELS, None),
    "zero weights": (_dense(), POINT, CLASSES, EVERY_THIRD),
    "weights in the mean": (_dense(WEIGHTED_MEAN), POINT, CLASSES, LINEAR),
    "positions": (_dense(), LINE, BY_LINE, None),
    "weights of positions": (_dense(), LINE, BY_LINE, BY_PLACE),
    "masks": (_masks, TWO_OF_LINE, BY_LINE, None),
    "convolution": (_convolution, LINE, CLASSES[:, None, None], None),
    "table": (_table, ONE * 2, CLASSES, None),
    "two outputs": (
        _two_outputs,
        *(POINT, [CLASSES, RNG.normal(size=(N, 2))], None),
    ),
    "one number": (_dense(**NO_BIAS), ONE, CLASSES, None),
    "one number, decayed": (_dense(**NO_BIAS, **L2), ONE, CLASSES, None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_hessian_of_the_compiled_loss(float64, name):
    make, x, y, weight = CASES[name]
    keras.utils.set_random_seed(1)
    parts, loss = make()
    model = compiled(net(*parts, shape=x.shape[1:], units=None), loss=loss)
    tests = keras.tree.map_structure(lambda t: t[:8], (x, y))

    def scores(curvature):
        how = {"curvature": curvature, "damping": 0.05, "batch_size": N}
        influence = influence_of(model, x, y, sample_weight=weight, **how)
        return influence.scores(*tests)

    right = scores("exact")
    share = 0.03 if "number" in name else 0.05
    # K-FAC is exact where all positions have the same input.
    for curvature in ("ekfac",) if name == "masks" else ("ekfac", "kfac"):
        assert_near(scores(curvature), right, share)
