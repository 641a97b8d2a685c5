"""Derivatives by inputs inside a step, as of physics-informed nets.

The reference is a plain `tf.GradientTape` around the same loss.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.marks import few

layers = keras.layers
POINTS = np.random.default_rng(0).uniform(size=(10, 2))
VALUES = np.random.default_rng(1).normal(size=(10, 1))
MODES = {
    "batch": "batch",
    "vectorized": kpg.Vectorized(kpg.ClippedMean(1e9)),
    "per_sample": kpg.PerSample(),
    "accumulated": kpg.Accumulated(microbatch_size=3),
    "clipped": kpg.Accumulated(
        microbatch_size=4, inner=kpg.Vectorized(kpg.ClippedMean(1e9))
    ),
}


def net():
    return keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(5, "tanh"),
            layers.Dense(4, "sigmoid"),
            layers.Dense(1),
        ]
    )


def held(inner):
    """A function that is zero at the border, whatever the net gives."""

    def function(points):
        x, y = points[:, :1], points[:, 1:]
        return x * (1 - x) * y * (1 - y) * inner(points)

    return function


def by_columns(function, points):
    """The Laplacian, from columns that are joined again."""
    columns = tf.split(points, 2, axis=1)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(columns)
        with tf.GradientTape() as inner:
            inner.watch(columns)
            value = function(tf.concat(columns, 1))
        slopes = inner.gradient(value, columns)
    seconds = [outer.gradient(s, c) for s, c in zip(slopes, columns)]
    return tf.add_n(seconds)


def by_slices(function, points):
    """The Laplacian, from slices of the slope."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(points)
        with tf.GradientTape() as inner:
            inner.watch(points)
            value = function(points)
        slope = inner.gradient(value, points)
        parts = slope[:, :1], slope[:, 1:]
    seconds = [outer.gradient(part, points) for part in parts]
    return seconds[0][:, :1] + seconds[1][:, 1:]


def by_jacobian(function, points):
    """The Laplacian, as the trace of the Hessian."""
    with tf.GradientTape() as outer:
        outer.watch(points)
        with tf.GradientTape() as inner:
            inner.watch(points)
            value = function(points)
        slope = inner.gradient(value, points)
    hessian = outer.batch_jacobian(slope, points)
    return tf.linalg.trace(hessian)[:, None]


LAPLACIANS = {"columns": by_columns, "slices": by_slices, "trace": by_jacobian}


class Residual(layers.Layer):
    def __init__(self, inner, laplacian):
        super().__init__()
        self.inner, self.laplacian = inner, laplacian

    def call(self, points):
        return self.laplacian(held(self.inner), points)


class OfLoss(kpg.PerGradModel):
    """The equation is in the loss of its own."""

    laplacian = staticmethod(by_columns)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        found = self.laplacian(held(self), x)
        return tf.reduce_mean((found - y)[:, 0] ** 2 + y_pred[:, 0] ** 2)


class OfStep(kpg.PerGradModel):
    """The equation is in the step of its own."""

    def train_step(self, data):
        x, y = data

        def loss_fn(x, y, sample_weight):
            found = by_columns(held(self), x)
            return (found - y)[:, 0] ** 2

        gradients, logs = self.compute_gradients(loss_fn, x, y)
        self.optimizer.apply(gradients, self.trainable_variables)
        return logs


def plain(model, loss):
    """The gradient of the loss, on a plain tape."""
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, model.trainable_variables)
    return [
        np.zeros(v.shape) if g is None else tf.convert_to_tensor(g).numpy()
        for g, v in zip(gradients, model.trainable_variables)
    ]


def moved(model, mode, **how):
    """What a step of descent by 1 subtracts: the gradient."""
    model.compile(keras.optimizers.SGD(1.0), gradient_mode=mode, **how)
    before = model.get_weights()
    model.fit(POINTS, VALUES, batch_size=10, shuffle=False, verbose=0)
    return [a - b for a, b in zip(before, model.get_weights())]


def agree(ours, right):
    assert max(np.abs(g).max() for g in right) > 1e-3
    for one, other in zip(ours, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("mode", "laplacian"),
    few(
        [
            *((mode, name) for mode in MODES for name in ("columns", "slices")),
            ("batch", "trace"),
            ("vectorized", "trace"),
        ],
        [
            ("batch", "columns"),
            ("vectorized", "slices"),
            ("vectorized", "trace"),
            ("per_sample", "columns"),
            ("accumulated", "slices"),
        ],
    ),
)
def test_in_a_layer(mode, laplacian):
    points = keras.Input((2,))
    layer = Residual(net(), LAPLACIANS[laplacian])
    model = kpg.PerGradModel(points, layer(points))
    right = plain(
        model,
        lambda: tf.reduce_mean((layer(tf.constant(POINTS)) - VALUES) ** 2),
    )
    agree(moved(model, MODES[mode], loss="mse"), right)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "mode", few(MODES, ["vectorized"], ["per_sample", "clipped"])
)
def test_in_a_layer_under_xla(mode):
    """There the gradient of a slice is an op of XLA's own."""
    points = keras.Input((2,))
    layer = Residual(net(), by_columns)
    model = kpg.PerGradModel(points, layer(points))
    right = plain(
        model,
        lambda: tf.reduce_mean((layer(tf.constant(POINTS)) - VALUES) ** 2),
    )
    agree(moved(model, MODES[mode], loss="mse", jit_compile=True), right)


@pytest.mark.parametrize("mode", ["per_sample", "accumulated"])
def test_a_jacobian_counts_its_samples_and_is_refused(mode):
    """`batch_jacobian` reshapes by the number of samples."""
    points = keras.Input((2,))
    model = kpg.PerGradModel(points, Residual(net(), by_jacobian)(points))
    with pytest.raises(ValueError, match="depend on the number of samples"):
        moved(model, MODES[mode], loss="mse")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", ["batch", "vectorized", "per_sample"])
def test_in_compute_loss(mode):
    points, inner = keras.Input((2,)), net()
    model = OfLoss(points, inner(points))

    def loss():
        x = tf.constant(POINTS)
        return tf.reduce_mean(
            (by_columns(held(inner), x) - VALUES)[:, 0] ** 2
            + inner(x)[:, 0] ** 2
        )

    right = plain(model, loss)
    agree(moved(model, MODES[mode]), right)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("mode", few(MODES, ["vectorized", "accumulated"]))
@pytest.mark.parametrize("eager", [False, True])
def test_in_a_train_step(mode, eager):
    points, inner = keras.Input((2,)), net()
    model = OfStep(points, inner(points))
    right = plain(
        model,
        lambda: tf.reduce_mean(
            (by_columns(held(inner), tf.constant(POINTS)) - VALUES) ** 2
        ),
    )
    agree(moved(model, MODES[mode], run_eagerly=eager), right)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("method", "laplacian"),
    few(
        [
            ("vectorized", "columns"),
            ("vectorized", "slices"),
            ("vectorized", "trace"),
            ("per_sample", "columns"),
            ("per_sample", "slices"),
        ],
        [("vectorized", "columns"), ("per_sample", "slices")],
    ),
)
def test_every_point_by_itself(method, laplacian):
    points = keras.Input((2,))
    layer = Residual(net(), LAPLACIANS[laplacian])
    model = keras.Model(points, layer(points))
    model.compile("sgd", "mse")
    data = tf.constant(POINTS), tf.constant(VALUES)
    ours = kpg.per_sample_gradients(model, *data, method=method)
    expected = oracle.per_sample_gradients(model, *data)
    for one, right in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-10, atol=1e-10)
