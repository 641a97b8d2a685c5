"""The gradient of each sample's own loss, against single samples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.inputs import gradients as chunks
from tests.inputs.tapes import assert_close, diagonals, gradients, of_ids
from tests.models.making import assert_equal, compiled, net, weights
from tests.uses.rules.exact import normal, stack

layers, losses = keras.layers, keras.losses
LABELS = np.array([0, 2, 1, 1, 0, 2, 1])


def _alone(model, x, y, *, weight=None):
    """The gradient of the loss of each sample as a batch of its own."""
    rows, data = [], (x, y) if weight is None else (x, y, weight)
    for batch in tf.data.Dataset.from_tensor_slices(data).batch(1):
        one, target, own_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            tape.watch(one)
            y_pred = model(one, training=False)
            loss = model.compute_loss(one, target, y_pred, own_weight, False)
        rows.append(tape.gradient(loss, one))
    return tf.nest.map_structure(lambda *r: np.concatenate(r), *rows)


def _dense(loss, **how):
    model = stack(
        (4,),
        layers.Dense(5, activation="tanh"),
        layers.Dropout(0.5),
        layers.Dense(3, kernel_regularizer="l2"),
    )
    return compiled(model, loss=loss, **how)


def _crossentropy(**how):
    return losses.SparseCategoricalCrossentropy(from_logits=True, **how)


def _batch_mean(y, predicted):
    return tf.reduce_mean(tf.square(predicted - y))


class _Own(keras.Model):
    """Its `compute_loss` is its own."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return tf.reduce_mean(tf.square(y_pred - y) ** 2 + tf.sin(x[:, :3]))


def _own():
    tanh = layers.Dense(3, "tanh")
    return compiled(net(tanh, shape=(4,), units=None, cls=_Own), loss=None)


def _masked():
    recurrent = layers.LSTM(2, return_sequences=True)
    return compiled(stack((3, 2), layers.Masking(), recurrent))


def _adding():
    hidden = layers.Dense(3, "tanh", activity_regularizer="l2")
    return compiled(stack((4,), hidden, layers.Dense(3)))


#: Model → whether its samples go through it one by one.
MODELS = {
    "labels": (lambda: _dense(_crossentropy()), False),
    "sum": (lambda: _dense(_crossentropy(reduction="sum")), False),
    "numbers": (lambda: _dense("mse"), False),
    "batch_mean": (lambda: _dense(_batch_mean), True),
    "compute_loss": (_own, True),
    "activities": (_adding, True),
    "masked": (_masked, True),
}


def _data(name):
    if name == "masked":
        x = normal(7, 3, 2)
        x[::2, 1:] = 0
        return x, normal(7, 3, 2)
    return normal(7, 4), LABELS if name in ("labels", "sum") else normal(7, 3)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_that_of_each_sample_alone(float64, name, monkeypatch):
    make, one_by_one = MODELS[name]
    model, (x, y), sizes = make(), _data(name), []
    before = weights(model)
    original = chunks.run_and_restore

    def noted(function, batch, own):
        sizes.append(len(batch[0]))
        return original(function, batch, own)

    monkeypatch.setattr(chunks, "run_and_restore", noted)
    expected = _alone(model, x, y)
    assert np.abs(expected).min(0).max() > 0
    for batch_size in (3, 100):
        assert_close(gradients(model, x, y=y, batch_size=batch_size), expected)
    assert sizes == ([1] * 14 if one_by_one else [3, 3, 1, 7])
    assert_equal(weights(model), before)


@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "mean_with_sample_weight"]
)
def test_sample_weights(float64, reduction):
    model = _dense(_crossentropy(reduction=reduction))
    x, weight = normal(7, 4), np.arange(7.0) + 1
    expected = _alone(model, x, LABELS, weight=weight)
    ours = gradients(model, x, y=LABELS, sample_weight=weight, batch_size=3)
    assert_close(ours, expected)
    dataset = tf.data.Dataset.from_tensor_slices((x, LABELS, weight)).batch(2)
    ours = gradients(model, dataset, outputs="loss", batch_size=3)
    assert_close(ours, expected)
    means = gradients(model, dataset, outputs="loss", reduce="mean_abs")
    np.testing.assert_allclose(means, np.abs(expected).mean(0), rtol=1e-10)


def test_several_outputs_and_inputs(float64):
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    joined = layers.Concatenate()([layers.Dense(2, "tanh")(a), b])
    outputs = {
        "kind": layers.Dense(3)(joined),
        "size": layers.Dense(1, "tanh")(joined),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        "sgd",
        {"kind": _crossentropy(), "size": losses.MeanSquaredError("sum")},
        loss_weights={"kind": 0.5, "size": 3.0},
    )
    x = {"a": normal(7, 3), "b": normal(7, 2)}
    y = {"kind": LABELS, "size": normal(7, 1)}
    assert_close(gradients(model, x, y=y, batch_size=3), _alone(model, x, y))


def test_of_token_ids_it_is_that_of_their_embeddings(float64):
    model, table, head = of_ids(3)
    for one in (model, head):
        one.compile("sgd", _crossentropy())
    ids = np.random.default_rng(0).integers(0, 6, (7, 4))
    ours = gradients(model, ids, y=LABELS, batch_size=2)
    assert_close(ours, _alone(head, table(ids).numpy(), LABELS))


def test_the_diagonal_of_the_hessian_of_the_loss(float64):
    model, x, y = _dense(_crossentropy()), normal(3, 4), LABELS[:3]

    def loss_of(x):
        return _crossentropy(reduction=None)(y, model(x))[:, None]

    ours = gradients(model, x, y=y, order=2)
    assert_close(ours, diagonals(loss_of, x)[:, 0])


def test_one_step_against_the_network_makes_it_worse():
    model = _dense(_crossentropy())
    x = normal(7, 4).astype("float32")
    labels = list(map(int, LABELS))
    adversarial = x + 0.1 * np.sign(gradients(model, x, y=labels))
    before = model.evaluate(x, LABELS, verbose=0)
    after = model.evaluate(adversarial, LABELS, verbose=0)
    assert after > before + 0.01
    method = compiled(model, "vectorized", _crossentropy())
    np.testing.assert_array_equal(
        method.input_gradients(x, y=LABELS, verbose=0),
        gradients(model, x, y=LABELS),
    )


def test_what_has_no_such_gradient_is_refused():
    model, x = _dense(_crossentropy()), normal(7, 4)
    for how, said in (
        ({"outputs": 1, "y": LABELS}, "pass the classes as `outputs`"),
        ({"outputs": LABELS, "y": LABELS}, "outputs=None or 'loss'"),
        ({"outputs": 0, "sample_weight": LABELS}, "for the gradient of the l"),
        ({"outputs": "loss"}, r"Expected `y`, or a dataset of \(x, y\)"),
        ({"y": LABELS[:5]}, "x with 7, y with 5"),
    ):
        with pytest.raises(ValueError, match=said):
            gradients(model, x, **how)
    with pytest.raises(ValueError, match=r"is not compiled"):
        gradients(stack((4,), layers.Dense(3)), x, y=LABELS)
    dataset = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(2)
    with pytest.raises(ValueError, match="come with the dataset"):
        gradients(model, dataset, y=LABELS)


@pytest.mark.quick
def test_a_loss_that_mixes_samples_is_refused():
    class Centred(losses.Loss):
        def call(self, y, predicted):
            missed = tf.reduce_mean(tf.square(predicted - y), -1)
            return missed - tf.reduce_mean(missed) ** 2

    model = _dense(Centred())
    with pytest.raises(ValueError, match="compares the samples of a batch"):
        gradients(model, normal(7, 4), y=normal(7, 3))
