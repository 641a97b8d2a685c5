"""A loss that is given to a call, against the oracle with that loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.models.making import compiled, integers, net, normal

layers = keras.layers


def _model(cls=keras.Model):
    return net(layers.Dense(4, "tanh"), layers.Dropout(0.5), cls=cls)


def _huber(y_true, y_pred):
    """One value per sample."""
    return tf.reduce_sum(tf.sqrt(1 + tf.square(y_true - y_pred)) - 1, -1)


X, Y = normal(7, 5), normal(7, 3, seed=1)
WEIGHTS = np.linspace(0, 2, 7)
LOSSES = {
    "name": lambda: "mae",
    "loss": keras.losses.LogCosh,
    "summed": lambda: keras.losses.MeanSquaredError("sum"),
    "function": lambda: _huber,
}
FUNCTIONS = (
    kpg.per_sample_gradients,
    kpg.per_sample_norms,
    kpg.gradient_statistics,
    kpg.per_sample_dots,
)


def _right(model, loss, **how):
    """The gradients of a copy that was compiled with the loss."""
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.compile("sgd", loss)
    copy.compute_loss(X, Y, copy(X))  # builds it
    return oracle.per_sample_gradients(copy, X, Y, **how)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(
    ("cls", "compiles"),
    [(keras.Model, False), (keras.Model, True), (kpg.PerGradModel, False)],
)
def test_it_takes_the_place_of_a_compiled_one(make, cls, compiles):
    loss, model = make(), _model(cls)
    if compiles:
        model.compile("sgd", "mse")
        own = _right(model, "mse")
    before = {**vars(model)}
    right = _right(model, loss)
    norms = np.sqrt(sum(np.square(g).reshape(7, -1).sum(1) for g in right))
    for method in ("vectorized", "per_sample"):
        how = {"loss": loss, "method": method, "training": False}
        found = kpg.per_sample_gradients(model, X, Y, **how)
        oracle.assert_agree(found, right)
        found = kpg.per_sample_norms(model, X, Y, **how)
        np.testing.assert_allclose(found, norms, rtol=1e-10)
        found = kpg.gradient_statistics(model, X, Y, **how)
        mean = sum(np.square(g.mean(0)).sum() for g in right)
        assert found.norm == pytest.approx(np.sqrt(mean), rel=1e-10)
        direction = [g[0] for g in right]
        found = kpg.per_sample_dots(model, X, Y, direction=direction, **how)
        dots = sum(np.tensordot(g, d, d.ndim) for g, d in zip(right, direction))
        np.testing.assert_allclose(found, dots, rtol=1e-9, atol=1e-10)
    # The model's own state is as before, and so is what it computes.
    for name in ("_compile_loss", "loss", "compiled", "_compile_metrics"):
        assert vars(model)[name] is before[name]
    assert hasattr(model, "optimizer") == ("optimizer" in before)
    if compiles:
        found = kpg.per_sample_gradients(model, X, Y, training=False)
        oracle.assert_agree(found, own)


@pytest.mark.usefixtures("float64")
def test_weights_batches_and_an_unbuilt_model():
    model = keras.Sequential([layers.Dense(3, "tanh")])
    found = kpg.per_sample_gradients(
        model, X, Y, WEIGHTS, loss="mse", batch_size=3, verbose=0
    )
    parts = []
    for rows in (slice(0, 3), slice(3, 6), slice(6, 7)):
        copy = compiled(keras.Sequential([layers.Dense(3, "tanh")]))
        copy.build((None, 5))
        copy.set_weights(model.get_weights())
        batch = X[rows], Y[rows]
        copy.compute_loss(*batch, copy(batch[0]))
        parts.append(oracle.per_sample_gradients(copy, *batch, WEIGHTS[rows]))
    right = [np.concatenate(part) for part in zip(*parts)]
    oracle.assert_agree(found, right)


@pytest.mark.usefixtures("float64")
def test_the_inputs_of_an_uncompiled_model():
    model = _model()
    found = kpg.input_gradients(model, X, Y, loss=_huber, verbose=0)
    with tf.GradientTape() as tape:
        x = tf.constant(X, "float64")
        tape.watch(x)
        loss = tf.reduce_sum(_huber(Y, model(x, training=False)))
    np.testing.assert_allclose(found, tape.gradient(loss, x), rtol=1e-10)
    model.compile("sgd", "mse")
    again = kpg.input_gradients(model, X, Y, loss=_huber, verbose=0)
    np.testing.assert_array_equal(again, found)
    own = kpg.input_gradients(model, X, Y, verbose=0)
    assert not np.allclose(own, found)
    with pytest.raises(ValueError, match="`loss` are for the gradient of"):
        kpg.input_gradients(model, X, outputs=0, loss="mse")


def test_it_is_removed_after_an_error():
    model = _model()
    with pytest.raises(ValueError, match="y=None"):
        kpg.per_sample_norms(model, X, loss="mse")
    assert not model.compiled


@pytest.mark.parametrize("function", FUNCTIONS)
def test_without_any_both_ways_out_are_named(function):
    how = {"direction": []} if function is kpg.per_sample_dots else {}
    said = r"loss='mse', or model.compile\(loss=...\) before"
    with pytest.raises(ValueError, match=said):
        function(_model(), X, Y, **how)


def test_compiled_without_a_loss_both_ways_out_are_named():
    model = compiled(_model(), loss=None)
    with pytest.raises(ValueError, match="take a `loss`"):
        kpg.per_sample_norms(model, X, Y)


class _Own(keras.Model):
    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return tf.reduce_mean(tf.square(y_pred - y))


def test_a_compute_loss_is_not_replaced():
    model = compiled(_model(_Own))
    with pytest.raises(ValueError, match=r"compute_loss\(\) of its own"):
        kpg.per_sample_norms(model, X, Y, loss="mae")


def test_a_function_that_takes_the_mean_itself_is_known_as_one():
    model = _model()
    found = kpg.per_sample_norms(
        model, X, Y, loss=lambda y, p: tf.reduce_mean(tf.square(y - p))
    )
    expected = kpg.per_sample_norms(model, X, Y, loss="mse")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("loss", ["mistyped", 3])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(ValueError, match=str(loss)):
        kpg.per_sample_norms(_model(), X, Y, loss=loss)


def test_labels_of_a_classifier():
    model = net(layers.Dense(4, "tanh"), layers.Dense(6), units=None)
    labels = integers(6, 7)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = kpg.per_sample_norms(model, X, labels, loss=loss)
    model.compile("sgd", loss)
    np.testing.assert_allclose(
        found, kpg.per_sample_norms(model, X, labels), rtol=1e-6
    )
