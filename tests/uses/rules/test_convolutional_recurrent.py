"""ConvLSTM: a recurrent layer whose products are convolutions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.uses import TracedStep
from keras_pergrad.uses.layer_rules import recurrent
from tests import oracle
from tests.marks import few
from tests.uses.rules.exact import (
    Unmasked,
    assert_draws_of_the_batch,
    assert_exact,
    normal,
    randomized,
    stack,
)

layers = keras.layers

CASES = {
    "1d": (lambda: layers.ConvLSTM1D(2, 2), (3, 4, 2)),
    "1d same strided": (
        lambda: layers.ConvLSTM1D(
            2, 3, strides=2, padding="same", return_sequences=True
        ),
        (3, 5, 2),
    ),
    "1d dilated": (
        lambda: layers.ConvLSTM1D(2, 2, dilation_rate=2),
        (3, 5, 2),
    ),
    "2d": (lambda: layers.ConvLSTM2D(2, 2), (3, 3, 4, 2)),
    "2d same": (
        lambda: layers.ConvLSTM2D(
            2, (3, 2), padding="same", return_sequences=True
        ),
        (3, 3, 4, 2),
    ),
    "2d uneven strides": (
        lambda: layers.ConvLSTM2D(2, (2, 3), strides=(2, 1), padding="same"),
        (2, 5, 3, 1),
    ),
    "2d strided": (lambda: layers.ConvLSTM2D(2, 2, strides=2), (2, 5, 5, 2)),
    "2d dilated": (
        lambda: layers.ConvLSTM2D(2, 2, dilation_rate=(2, 1)),
        (2, 4, 4, 2),
    ),
    "2d backwards": (
        lambda: layers.ConvLSTM2D(
            2, 2, go_backwards=True, return_sequences=True
        ),
        (3, 3, 3, 2),
    ),
    "2d no bias": (
        lambda: layers.ConvLSTM2D(2, 2, use_bias=False),
        (3, 3, 3, 2),
    ),
    "2d no forget bias": (
        lambda: layers.ConvLSTM2D(
            2, 2, unit_forget_bias=False, activation="relu"
        ),
        (3, 3, 3, 2),
    ),
    "2d unroll": (
        lambda: layers.ConvLSTM2D(2, 2, unroll=True, return_sequences=True),
        (3, 3, 3, 2),
    ),
    "2d one pixel kernel": (lambda: layers.ConvLSTM2D(2, 1), (2, 3, 3, 2)),
    "3d": (lambda: layers.ConvLSTM3D(2, 2), (2, 3, 2, 3, 2)),
    "3d same": (
        lambda: layers.ConvLSTM3D(
            1, (1, 2, 3), padding="same", return_sequences=True
        ),
        (2, 2, 3, 3, 1),
    ),
}


def _model(name):
    make, shape = CASES[name]
    return stack(shape, make(), layers.Activation("tanh")), shape


@pytest.fixture(params=["unrolled", "looped"])
def steps(request, monkeypatch):
    limit = 100 if request.param == "unrolled" else 0
    monkeypatch.setattr(recurrent, "UNROLLED_STEPS", limit)


@pytest.mark.usefixtures("float64", "steps")
@pytest.mark.parametrize("name", few(CASES, ["1d", "2d same", "2d strided"]))
def test_is_exact(name):
    model, shape = _model(name)
    assert_exact(model, normal(3, *shape))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["1d dilated", "2d backwards", "3d"])
def test_one_sample_of_a_known_number(name):
    model, shape = _model(name)
    assert_exact(model, normal(1, *shape), run="known size")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", few(CASES, ["1d same strided", "2d dilated", "3d"])
)
def test_is_exact_under_xla(name):
    model, shape = _model(name)
    assert_exact(model, normal(2, *shape), run="xla")


def _factors(model, x):
    with TracedStep(model, (x, None, None), True, _squares) as tape:
        loss = tf.reduce_sum(tf.square(tape.forward(x)))
    return tape.sample_gradients(loss)


def _squares(model, x, y, y_pred, sample_weight, training):
    return tf.reduce_sum(tf.square(y_pred))


def _alone(model, x):
    """The gradients of each sample's sum of squares."""
    for i in range(len(x)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x[i : i + 1])))
        yield tape.gradient(loss, model.trainable_variables)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("filters", [2, 150])
def test_any_number_of_frames_is_exact(filters, xla):
    """The wide kernel is one whose gradients are not held."""
    layer = layers.ConvLSTM2D(filters, (2, 3), padding="same")
    model = stack((None, 3, 2, 1), layer)
    signature = tf.TensorSpec([None, None, 3, 2, 1], tf.float64)

    @tf.function(input_signature=[signature], jit_compile=xla)
    def gradients(x):
        factors = _factors(model, x)
        norms = [f.squared_norms() for f in factors]
        return (
            [f.weighted_sum(None) for f in factors],
            [f.materialize() for f in factors],
            norms,
        )

    for frames in (2, 3):
        x = tf.constant(normal(2, frames, 3, 2, 1))
        total, found, norms = gradients(x)
        expected = [np.stack(g) for g in zip(*_alone(model, x))]
        oracle.assert_agree(found, expected)
        oracle.assert_agree(total, [g.sum(0) for g in expected])
        squares = [(g**2).reshape(2, -1).sum(1) for g in expected]
        oracle.assert_agree(norms, squares)


MASKS = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 1, 1]])


@pytest.mark.usefixtures("float64", "steps")
@pytest.mark.parametrize(("backwards", "zero"), [(False, False), (True, True)])
@pytest.mark.parametrize("sequences", [True, False])
def test_masks_and_initial_states_are_exact(sequences, backwards, zero):
    x, mask = keras.Input((3, 4, 2)), keras.Input((3,), dtype="bool")
    start = keras.Input((3, 2))
    layer = layers.ConvLSTM1D(
        2,
        2,
        return_sequences=sequences,
        go_backwards=backwards,
        zero_output_for_mask=zero,
    )
    states = [layers.Dense(2)(start)] * 2
    outputs = Unmasked()(layer(x, mask=mask, initial_state=states))
    model = randomized(keras.Model([x, mask, start], outputs))
    masks = tf.constant(MASKS, tf.bool)
    assert_exact(model, [normal(5, 3, 4, 2), masks, normal(5, 3, 2)])


@pytest.mark.usefixtures("float64")
def test_returned_states_and_a_second_layer_are_exact():
    x = keras.Input((3, 3, 3, 1))
    first = layers.ConvLSTM2D(2, 2, return_sequences=True, return_state=True)
    outputs, *states = first(x)
    last = layers.ConvLSTM2D(1, 2, padding="same")(outputs)
    joined = [layers.Flatten()(t) for t in (last, *states)]
    model = keras.Model(x, layers.Concatenate()(joined))
    assert_exact(randomized(model), normal(3, 3, 3, 3, 1))


@pytest.mark.usefixtures("float64")
def test_samples_that_are_merged_with_positions_are_exact():
    layer = layers.TimeDistributed(layers.ConvLSTM1D(2, 2))
    assert_exact(stack((2, 3, 4, 2), layer), normal(3, 2, 3, 4, 2))


@pytest.mark.usefixtures("float64")
def test_bidirectional_is_exact():
    layer = layers.Bidirectional(layers.ConvLSTM1D(2, 2))
    assert_exact(stack((3, 4, 2), layer), normal(3, 3, 4, 2))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("float64")
def test_an_unknown_activation_falls_back():
    layer = layers.ConvLSTM1D(2, 2, activation="softmax")
    model = stack((3, 4, 2), layer)
    assert_exact(model, normal(2, 3, 4, 2), one_by_one=["While"])


DROPPING = {
    "inputs": {"dropout": 0.4},
    "states": {"recurrent_dropout": 0.4},
    "both": {"dropout": 0.3, "recurrent_dropout": 0.4},
}


@pytest.mark.usefixtures("float64", "steps")
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_exact(name, monkeypatch):
    """Against single samples, with the same mask for every sample."""
    layer = layers.ConvLSTM1D(
        2, 2, return_sequences=True, seed=3, **DROPPING[name]
    )
    model = stack((3, 4, 2), layer)
    _same_for_all(layer.cell, monkeypatch)
    assert_exact(model, normal(3, 3, 4, 2), training=True)


def _same_for_all(cell, monkeypatch):
    """Let a cell drop the same of each sample, at each call."""

    def masks(step_input, rate):
        shape = [4, *step_input.shape[1:]]
        drawn = np.random.default_rng(len(shape)).random(shape) > rate
        one = tf.constant(drawn / (1 - rate), step_input.dtype)
        return [one[k] * tf.ones_like(step_input) for k in range(4)]

    monkeypatch.setattr(cell, "_create_dropout_mask", masks)


@pytest.mark.usefixtures("float64")
def test_dropout_in_training_is_the_batchs_own():
    layer = layers.ConvLSTM2D(2, 2, dropout=0.4, recurrent_dropout=0.4, seed=3)
    model = stack((3, 3, 3, 2), layer)
    x = normal(3, 3, 3, 3, 2)
    assert_draws_of_the_batch(model, x, normal(*model(x).shape))


@pytest.mark.usefixtures("float64")
def test_dropout_outside_training_keeps_the_rule():
    layer = layers.ConvLSTM1D(2, 2, dropout=0.5, recurrent_dropout=0.5)
    assert_exact(stack((3, 4, 2), layer), normal(3, 3, 4, 2))


CHANNELS_FIRST = {
    "1d": (layers.ConvLSTM1D, {"return_sequences": True}, (3, 2, 4)),
    "2d": (
        layers.ConvLSTM2D,
        {"strides": 2, "padding": "same", "dropout": 0.5},
        (2, 2, 4, 5),
    ),
    "3d": (layers.ConvLSTM3D, {"go_backwards": True}, (2, 1, 3, 2, 3)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CHANNELS_FIRST)
def test_channels_first_is_exact(name, monkeypatch):
    """Against a twin whose channels are last: the CPU has no such op."""
    cls, kwargs, shape = CHANNELS_FIRST[name]
    kwargs = {"filters": 2, "kernel_size": 2, "return_state": True, **kwargs}
    rank = int(name[0])
    x = normal(3, *shape)
    inputs = keras.Input(shape)
    layer = cls(data_format="channels_first", **kwargs)
    first = randomized(keras.Model(inputs, layer(inputs)))
    moved = np.moveaxis(x, 2, -1)
    inputs = keras.Input(moved.shape[1:])
    twin_layer = cls(data_format="channels_last", **kwargs)
    twin = keras.Model(inputs, twin_layer(inputs))
    twin.set_weights(first.get_weights())
    found, expected = (
        _of_step(model, part, cell, monkeypatch)
        for model, part, cell in (
            (first, x, layer.cell),
            (twin, moved, twin_layer.cell),
        )
    )
    oracle.assert_agree(found[1], expected[1])
    for a, b in zip(found[0], expected[0]):
        np.testing.assert_allclose(a, np.moveaxis(b, -1, -1 - rank), rtol=1e-9)


def _of_step(model, x, cell, monkeypatch):
    """Outputs and gradients, with masks that do not depend on the layout."""

    def masks(step_input, rate):
        return [tf.ones_like(step_input) * (k + 1) for k in range(4)]

    monkeypatch.setattr(cell, "_create_dropout_mask", masks)

    @tf.function(autograph=False)
    def compute(x):
        with TracedStep(model, (x, None, None), True, _all_squares) as tape:
            outputs = tape.forward(x)
            loss = _all_squares(None, None, None, outputs, None, True)
        factors = tape.sample_gradients(loss)
        return outputs, [f.materialize() for f in factors]

    return compute(tf.constant(x))


def _all_squares(model, x, y, y_pred, sample_weight, training):
    return tf.add_n([tf.reduce_sum(tf.square(t)) for t in y_pred])
