"""Recurrent layers, also those whose products are convolutions."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.uses import TracedStep
from keras_pergrad.uses.layer_rules import recurrent
from tests import oracle
from tests.marks import few
from tests.uses.own_layer import Folded
from tests.uses.rules.exact import (
    Unmasked,
    assert_draws_of_the_batch,
    assert_exact,
    normal,
    randomized,
    stack,
)

layers = keras.layers


class Kind(NamedTuple):
    """How a layer is made, and the shapes of its steps and states."""

    make: Callable
    step: tuple = (2,)
    state: tuple = (3,)
    states: int = 1


KINDS = {
    "simple": Kind(functools.partial(layers.SimpleRNN, 3)),
    "lstm": Kind(functools.partial(layers.LSTM, 3), states=2),
    "gru": Kind(functools.partial(layers.GRU, 3)),
    "gru before": Kind(functools.partial(layers.GRU, 3, reset_after=False)),
    "convolutional": Kind(
        functools.partial(layers.ConvLSTM1D, 2, 2), (4, 2), (3, 2), states=2
    ),
}
PLAIN = [name for name in KINDS if name != "convolutional"]
STATEFUL = ["lstm", "gru", "convolutional"]
SEQUENCES = {"return_sequences": True}
BACKWARDS = {"go_backwards": True, **SEQUENCES}
SETTINGS = {
    "last": {},
    "sequence": SEQUENCES,
    "backwards": BACKWARDS,
    "no bias": {"use_bias": False},
    "unroll": {"unroll": True},
    "linear": {"activation": "relu"},
}


@pytest.fixture(params=["unrolled", "looped"])
def steps(request, monkeypatch):
    limit = 100 if request.param == "unrolled" else 0
    monkeypatch.setattr(recurrent, "UNROLLED_STEPS", limit)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("setting", few(SETTINGS, ["last", "backwards"]))
@pytest.mark.parametrize("name", PLAIN)
def test_is_exact(name, setting):
    layer = KINDS[name].make(**SETTINGS[setting])
    model = stack((4, 2), layers.Dense(2), layer, layers.Dense(2))
    assert_exact(model, normal(3, 4, 2))


def _convolutional(rank, shape, filters=2, *, kernel=2, **settings):
    cls = getattr(layers, f"ConvLSTM{rank}D")
    return lambda: cls(filters, kernel, **settings), shape


SAME = {"padding": "same", **SEQUENCES}
FRAMES = 3, 3, 3, 2
CONVOLUTIONAL = {
    "1d": _convolutional(1, (3, 4, 2)),
    "1d same strided": _convolutional(
        1, (3, 5, 2), 2, kernel=3, strides=2, **SAME
    ),
    "1d dilated": _convolutional(1, (3, 5, 2), dilation_rate=2),
    "2d": _convolutional(2, (3, 3, 4, 2)),
    "2d same": _convolutional(2, (3, 3, 4, 2), 2, kernel=(3, 2), **SAME),
    "2d uneven strides": _convolutional(
        2, (2, 5, 3, 1), 2, kernel=(2, 3), strides=(2, 1), padding="same"
    ),
    "2d strided": _convolutional(2, (2, 5, 5, 2), strides=2),
    "2d dilated": _convolutional(2, (2, 4, 4, 2), dilation_rate=(2, 1)),
    "2d backwards": _convolutional(2, FRAMES, **BACKWARDS),
    "2d no bias": _convolutional(2, FRAMES, use_bias=False),
    "2d no forget bias": _convolutional(
        2, FRAMES, unit_forget_bias=False, activation="relu"
    ),
    "2d unroll": _convolutional(2, FRAMES, unroll=True, **SEQUENCES),
    "2d one pixel kernel": _convolutional(2, (2, 3, 3, 2), 2, kernel=1),
    "3d": _convolutional(3, (2, 3, 2, 3, 2)),
    "3d same": _convolutional(3, (2, 2, 3, 3, 1), 1, kernel=(1, 2, 3), **SAME),
}


def _model(name):
    make, shape = CONVOLUTIONAL[name]
    return stack(shape, make(), layers.Activation("tanh")), shape


@pytest.mark.usefixtures("float64", "steps")
@pytest.mark.parametrize(
    "name", few(CONVOLUTIONAL, ["1d", "2d same", "2d strided"])
)
def test_convolutional_ones_are_exact(name):
    model, shape = _model(name)
    assert_exact(model, normal(3, *shape))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", [*PLAIN, "1d dilated", "2d backwards", "3d"])
def test_one_sample_of_a_known_number_is_exact(name):
    if name in KINDS:
        shape = 4, 2
        model = stack(shape, KINDS[name].make(**SEQUENCES))
    else:
        model, shape = _model(name)
    assert_exact(model, normal(1, *shape), run="known size")


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_is_exact_under_xla(name):
    layer = KINDS[name].make(**BACKWARDS)
    assert_exact(stack((12, 2), layer), normal(2, 12, 2), run="xla")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "name", few(CONVOLUTIONAL, ["1d same strided", "2d dilated", "3d"])
)
def test_convolutional_ones_are_exact_under_xla(name):
    model, shape = _model(name)
    assert_exact(model, normal(2, *shape), run="xla")


MASKS = np.array(
    [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 0]]
)


@pytest.mark.usefixtures("float64", "steps")
@pytest.mark.parametrize(
    ("name", "sequences", "backwards"),
    [(name, not backwards, backwards) for name in KINDS for backwards in (0, 1)]
    + [("convolutional", False, False), ("convolutional", True, True)],
)
def test_masks_and_initial_states_are_exact(name, sequences, backwards):
    kind = KINDS[name]
    x, mask = keras.Input((4, *kind.step)), keras.Input((4,), dtype="bool")
    start = keras.Input(kind.state)
    layer = kind.make(
        return_sequences=sequences,
        go_backwards=backwards,
        zero_output_for_mask=backwards,
    )
    states = [layers.Dense(kind.state[-1])(start)] * kind.states
    outputs = Unmasked()(layer(x, mask=mask, initial_state=states))
    model = randomized(keras.Model([x, mask, start], outputs))
    masks = tf.constant(MASKS, tf.bool)
    batch = [normal(5, 4, *kind.step), masks, normal(5, *kind.state)]
    assert_exact(model, batch)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", STATEFUL)
def test_returned_states_and_a_second_layer_are_exact(name):
    kind = KINDS[name]
    x = keras.Input((3, *kind.step))
    first = kind.make(return_sequences=True, return_state=True)
    outputs, *states = first(x)
    # As a decoder starts from the states of an encoder.
    start = None if name == "convolutional" else states
    second = kind.make()(outputs, initial_state=start)
    joined = [layers.Flatten()(t) for t in (outputs, second, *states)]
    model = keras.Model(x, layers.Concatenate()(joined))
    assert_exact(randomized(model), normal(3, 3, *kind.step))


def _both_ways(merge):
    layer = layers.GRU(3, **SEQUENCES)
    return layers.Bidirectional(layer, merge_mode=merge)


OUTSIDE_TRAINING = {"dropout": 0.5, "recurrent_dropout": 0.5}
LOOP = ["While"]
#: A layer, the shape of a sample, and the ops that no rule knows. There are no
#: biases then: each variable is a loop of its own for each answer.
LAYERS = {
    "concatenated": (lambda: _both_ways("concat"), (4, 2), ()),
    "multiplied": (lambda: _both_ways("mul"), (4, 2), ()),
    "convolutional": (
        lambda: layers.Bidirectional(layers.ConvLSTM1D(2, 2)),
        (3, 4, 2),
        (),
    ),
    "samples merged with positions": (
        lambda: layers.TimeDistributed(layers.ConvLSTM1D(2, 2)),
        (2, 3, 4, 2),
        (),
    ),
    "lstm cell": (lambda: layers.RNN(layers.LSTMCell(3)), (4, 2), ()),
    "gru cell": (lambda: layers.RNN(layers.GRUCell(3)), (4, 2), ()),
    "dropout": (lambda: layers.GRU(3, **OUTSIDE_TRAINING), (3, 2), ()),
    "convolutional with dropout": (
        lambda: layers.ConvLSTM1D(2, 2, **OUTSIDE_TRAINING),
        (3, 4, 2),
        (),
    ),
    "stacked cells": (
        lambda: layers.RNN(
            [layers.SimpleRNNCell(k, use_bias=False) for k in (3, 2)]
        ),
        (3, 2),
        LOOP,
    ),
    "unknown activation": (
        lambda: layers.LSTM(3, recurrent_activation="softmax", use_bias=False),
        (3, 2),
        LOOP,
    ),
    "convolutional with an unknown activation": (
        lambda: layers.ConvLSTM1D(2, 2, activation="softmax"),
        (3, 4, 2),
        LOOP,
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(LAYERS, [*LAYERS][:-1], []))
def test_layers_around_cells_and_beside_the_rules_are_exact(name):
    make, shape, loops = LAYERS[name]
    assert_exact(stack(shape, make()), normal(3, *shape), one_by_one=loops)


def _of_words(layer):
    """Pads at either end, and inside, are masked."""
    ids = keras.Input((5,), dtype="int32")
    x = layer(layers.Embedding(7, 3, mask_zero=True)(ids))
    model = randomized(keras.Model(ids, layers.Dense(2)(x)))
    return model, np.array([[1, 2, 0, 3, 0], [0, 0, 3, 4, 0], [6, 2, 3, 4, 5]])


@pytest.mark.usefixtures("float64")
def test_a_bidirectional_lstm_with_masks_is_exact():
    assert_exact(*_of_words(layers.Bidirectional(layers.LSTM(3))))


def test_masks_are_exact_under_xla():
    assert_exact(*_of_words(layers.SimpleRNN(3)), run="xla")


BOTH = {"dropout": 0.4, "recurrent_dropout": 0.4, "seed": 3}
DROPPING = {
    "lstm": (lambda: layers.LSTM(3, **BOTH), (4, 2)),
    "bidirectional": (
        lambda: layers.Bidirectional(layers.GRU(3, dropout=0.4, seed=4)),
        (4, 2),
    ),
    "convolutional": (lambda: layers.ConvLSTM2D(2, 2, **BOTH), FRAMES),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_in_training_is_the_batchs_own(name):
    make, shape = DROPPING[name]
    model, x = stack(shape, make(), layers.Dense(2)), normal(3, *shape)
    assert_draws_of_the_batch(model, x, normal(*model(x).shape))


def _drop_the_same(cell, monkeypatch):
    """Let a cell drop the same of each sample, at each call."""
    count = getattr(cell, "dropout_mask_count", None)

    def masks(step_input, rate):
        shape = [count or 1, *step_input.shape[1:]]
        drawn = np.random.default_rng(len(shape)).random(shape) > rate
        ones = tf.ones_like(step_input)
        each = [
            tf.constant(row, ones.dtype) * ones for row in drawn / (1 - rate)
        ]
        return each if count else each[0]

    monkeypatch.setattr(cell, "_create_dropout_mask", masks)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "rates",
    [
        {"dropout": 0.4},
        {"recurrent_dropout": 0.4},
        {"dropout": 0.3, "recurrent_dropout": 0.4},
    ],
    ids=["inputs", "states", "both"],
)
@pytest.mark.parametrize(
    ("name", "settings", "unrolled"),
    [
        ("simple", {}, True),
        ("lstm", {}, True),
        ("lstm", {"implementation": 1, "use_cudnn": False}, True),
        ("gru", {}, True),
        ("gru before", {}, True),
        ("convolutional", {}, True),
        ("convolutional", {}, False),
    ],
)
def test_dropout_is_exact_by_the_rule(
    name, settings, unrolled, *, rates, monkeypatch
):
    """Against single samples, with the same masks for every sample."""
    monkeypatch.setattr(recurrent, "UNROLLED_STEPS", 100 if unrolled else 0)
    kind = KINDS[name]
    shape = 3, *kind.step
    layer = kind.make(return_sequences=True, seed=3, **settings, **rates)
    model = stack(shape, layers.Dense(3), layer)
    _drop_the_same(layer.cell, monkeypatch)
    assert_exact(model, normal(3, *shape), training=True)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["lstm", "convolutional"])
def test_a_stateful_layer_keeps_its_states(name):
    kind = KINDS[name]
    inputs = keras.Input((4, *kind.step), batch_size=3)
    layer = kind.make(stateful=True)
    model = randomized(keras.Model(inputs, layer(inputs)))
    x = tf.constant(normal(3, 4, *kind.step))
    before = [s.numpy() for s in layer.states]
    with TracedStep(model, (x, None, None)) as tape:
        found = tape.forward(x)
    after = [s.numpy() for s in layer.states]
    for state, value in zip(layer.states, before):
        state.assign(value)
    np.testing.assert_allclose(found, model(x), rtol=1e-12)
    for state, value in zip(layer.states, after):
        np.testing.assert_allclose(state, value, rtol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "convolutional"])
def test_mixed_precision_gives_the_layers_output(name):
    keras.config.set_dtype_policy("mixed_float16")
    kind = KINDS[name]
    model = stack((4, *kind.step), kind.make(return_sequences=True))
    x = tf.constant(normal(3, 4, *kind.step))
    with TracedStep(model, (x, None, None)) as tape:
        found = tape.forward(x)
    assert found.dtype == tf.float16
    np.testing.assert_allclose(found, model(x), rtol=1e-2, atol=1e-2)


def _wide(filters):
    return lambda: layers.ConvLSTM2D(filters, (2, 3), padding="same")


#: The gradients of the wide kernel are not held.
ANY_LENGTH = {
    "gru": (lambda: layers.GRU(3, return_sequences=True), (2,), "any size"),
    "convolutional": (_wide(2), (3, 2, 1), "any size"),
    "convolutional, xla": (_wide(2), (3, 2, 1), "any size, xla"),
    "wide": (_wide(150), (3, 2, 1), "any size"),
    "wide, xla": (_wide(150), (3, 2, 1), "any size, xla"),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ANY_LENGTH)
def test_any_number_of_steps_is_exact(name):
    make, step, run = ANY_LENGTH[name]
    model = stack((None, *step), make())
    x, longer = (normal(2, steps, *step) for steps in (2, 3))
    assert_exact(model, x, run=run, others=[longer])


FOLDED = {
    "lstm": (lambda: layers.LSTM(3), (None, 4, 2)),
    "gru of any length": (lambda: layers.GRU(3), (None, None, 2)),
    "convolutional": (lambda: layers.ConvLSTM1D(2, 2), (None, 4, 3, 2)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("name", FOLDED)
def test_rows_of_any_number_of_nodes_are_exact(name, before):
    make, shape = FOLDED[name]
    model = stack(shape, Folded(make(), before), layers.Dense(2))
    x = normal(3, *[size or 4 for size in shape])
    assert_exact(model, x, run="any size")


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
    cls, settings, shape = CHANNELS_FIRST[name]
    x, rank = normal(3, *shape), int(name[0])
    last, found = None, []
    for order in ("first", "last"):
        if order == "last":
            x = np.moveaxis(x, 2, -1)
        layer = cls(
            2, 2, data_format=f"channels_{order}", return_state=True, **settings
        )
        inputs = keras.Input(x.shape[1:])
        model = keras.Model(inputs, layer(inputs))
        model.set_weights(last or randomized(model).get_weights())
        last = model.get_weights()
        found.append(_of_step(model, x, layer.cell, monkeypatch=monkeypatch))
    (outputs, gradients), (others, expected) = found
    oracle.assert_agree(gradients, expected)
    for a, b in zip(outputs, others, strict=True):
        np.testing.assert_allclose(a, np.moveaxis(b, -1, -1 - rank), rtol=1e-9)


def _of_step(model, x, cell, *, monkeypatch):
    """Outputs and gradients, with masks that do not depend on the layout."""

    def masks(step_input, rate):
        return [tf.ones_like(step_input) * (k + 1) for k in range(4)]

    monkeypatch.setattr(cell, "_create_dropout_mask", masks)

    @tf.function(autograph=False)
    def compute(x):
        with TracedStep(
            model, (x, None, None), True, loss=_all_squares
        ) as tape:
            outputs = tape.forward(x)
            loss = _all_squares(
                None,
                None,
                None,
                y_pred=outputs,
                sample_weight=None,
                training=True,
            )
        factors = tape.sample_gradients(loss)
        return outputs, [f.materialize() for f in factors]

    return compute(tf.constant(x))


def _all_squares(model, x, y, y_pred, sample_weight, training):
    return tf.add_n([tf.reduce_sum(tf.square(t)) for t in y_pred])
