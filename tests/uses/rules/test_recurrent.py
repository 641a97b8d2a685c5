import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.uses import TracedStep
from keras_pergrad.uses.layer_rules import recurrent
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

LAYERS = {
    "simple": layers.SimpleRNN,
    "lstm": layers.LSTM,
    "gru": layers.GRU,
    "gru before": lambda *a, **k: layers.GRU(*a, reset_after=False, **k),
}
SETTINGS = {
    "last": {},
    "sequence": {"return_sequences": True},
    "backwards": {"return_sequences": True, "go_backwards": True},
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
@pytest.mark.parametrize("name", LAYERS)
def test_is_exact(name, setting):
    layer = LAYERS[name](3, **SETTINGS[setting])
    model = stack((4, 2), layers.Dense(2), layer, layers.Dense(2))
    assert_exact(model, normal(3, 4, 2))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", LAYERS)
def test_one_sample_and_no_graph(name):
    layer = LAYERS[name](3, return_sequences=True)
    assert_exact(stack((4, 2), layer), normal(1, 4, 2), run="known size")


MASKS = np.array(
    [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1], [1, 0, 1, 0]]
)


def _masked(layer, initial=False):
    """A model whose third input tells which steps count."""
    x, mask = keras.Input((4, 2)), keras.Input((4,), dtype="bool")
    states = keras.Input((3,))
    kwargs = {}
    if initial:
        count = 2 if isinstance(layer, layers.LSTM) else 1
        start = layers.Dense(3)(states)
        kwargs["initial_state"] = [start] * count
    outputs = layer(x, mask=mask, **kwargs)
    outputs = Unmasked()(outputs)
    model = keras.Model([x, mask, states], outputs)
    batch = [normal(5, 4, 2), tf.constant(MASKS, tf.bool), normal(5, 3)]
    return randomized(model), batch


@pytest.mark.usefixtures("float64", "steps")
@pytest.mark.parametrize(("backwards", "zero"), [(False, False), (True, True)])
@pytest.mark.parametrize("name", LAYERS)
def test_masks_and_initial_states_are_exact(name, backwards, zero):
    layer = LAYERS[name](
        3,
        return_sequences=not backwards,
        go_backwards=backwards,
        zero_output_for_mask=zero,
    )
    assert_exact(*_masked(layer, initial=True))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_returned_states_are_exact(name):
    x = keras.Input((4, 2))
    outputs = LAYERS[name](3, return_sequences=True, return_state=True)(x)
    joined = layers.Concatenate()([layers.Flatten()(outputs[0]), *outputs[1:]])
    assert_exact(randomized(keras.Model(x, joined)), normal(3, 4, 2))


@pytest.mark.usefixtures("float64")
def test_an_encoder_gives_its_state_to_a_decoder():
    x, z = keras.Input((4, 2)), keras.Input((3, 2))
    _, *state = layers.LSTM(3, return_state=True)(x)
    decoder = layers.LSTM(3, return_sequences=True)
    outputs = decoder(z, initial_state=state)
    model = randomized(keras.Model([x, z], outputs))
    assert_exact(model, [normal(3, 4, 2), normal(3, 3, 2)])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("merge", ["concat", "mul"])
def test_bidirectional_is_exact(merge):
    layer = layers.Bidirectional(
        layers.GRU(3, return_sequences=True), merge_mode=merge
    )
    assert_exact(stack((4, 2), layer), normal(3, 4, 2))


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


DROPPING = {
    "lstm": lambda: layers.LSTM(3, dropout=0.4, recurrent_dropout=0.4, seed=3),
    "bidirectional": lambda: layers.Bidirectional(
        layers.GRU(3, dropout=0.4, seed=4)
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", DROPPING)
def test_dropout_in_training_is_the_batchs_own(name):
    model = stack((4, 2), DROPPING[name](), layers.Dense(2))
    assert_draws_of_the_batch(model, normal(3, 4, 2), normal(3, 2))


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
    ("cls", "settings"),
    [
        (layers.SimpleRNN, {}),
        (layers.LSTM, {}),
        (layers.LSTM, {"implementation": 1, "use_cudnn": False}),
        (layers.GRU, {}),
        (layers.GRU, {"reset_after": False}),
    ],
)
def test_dropout_is_exact_by_the_rule(cls, settings, rates, monkeypatch):
    """Against single samples, with the same masks for every sample."""
    layer = cls(3, return_sequences=True, seed=3, **settings, **rates)
    model = stack((4, 2), layers.Dense(3), layer)
    _drop_the_same(layer.cell, monkeypatch)
    assert_exact(model, normal(3, 4, 2), training=True)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cell", [layers.LSTMCell, layers.GRUCell])
def test_a_known_cell_in_a_plain_rnn_is_exact(cell):
    assert_exact(stack((4, 2), layers.RNN(cell(3))), normal(3, 4, 2))


@pytest.mark.usefixtures("float64")
def test_stacked_cells_fall_back():
    """Without biases: each variable is a loop of its own for each answer."""
    cells = [
        layers.SimpleRNNCell(3, use_bias=False),
        layers.SimpleRNNCell(2, use_bias=False),
    ]
    model = stack((3, 2), layers.RNN(cells))
    assert_exact(model, normal(3, 3, 2), one_by_one=["While"])


@pytest.mark.usefixtures("float64")
def test_an_unknown_activation_falls_back():
    layer = layers.LSTM(3, recurrent_activation="softmax", use_bias=False)
    assert_exact(stack((3, 2), layer), normal(3, 3, 2), one_by_one=["While"])


@pytest.mark.usefixtures("float64")
def test_dropout_outside_training_keeps_the_rule():
    layer = layers.GRU(3, dropout=0.5, recurrent_dropout=0.5)
    assert_exact(stack((4, 2), layer), normal(3, 4, 2))


#: A recurrent layer and one whose products are convolutions, and a sample.
BOTH = {
    "lstm": (lambda **how: layers.LSTM(3, **how), (4, 2)),
    "conv": (lambda **how: layers.ConvLSTM1D(2, 2, **how), (3, 4, 2)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", BOTH)
def test_a_stateful_layer_keeps_its_states(name):
    make, shape = BOTH[name]
    inputs, layer = keras.Input(shape, batch_size=3), make(stateful=True)
    model = randomized(keras.Model(inputs, layer(inputs)))
    x = tf.constant(normal(3, *shape))
    before = [s.numpy() for s in layer.states]
    with TracedStep(model, (x, None, None)) as tape:
        found = tape.forward(x)
    after = [s.numpy() for s in layer.states]
    for state, value in zip(layer.states, before):
        state.assign(value)
    np.testing.assert_allclose(found, model(x), rtol=1e-12)
    for state, value in zip(layer.states, after):
        np.testing.assert_allclose(state, value, rtol=1e-12)


@pytest.mark.parametrize("name", BOTH)
def test_mixed_precision_gives_the_layers_output(name):
    keras.config.set_dtype_policy("mixed_float16")
    make, shape = BOTH[name]
    model = stack(shape, make(return_sequences=True))
    x = tf.constant(normal(3, *shape))
    with TracedStep(model, (x, None, None)) as tape:
        found = tape.forward(x)
    assert found.dtype == tf.float16
    np.testing.assert_allclose(found, model(x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_is_exact_under_xla(name):
    layer = LAYERS[name](3, return_sequences=True, go_backwards=True)
    assert_exact(stack((12, 2), layer), normal(2, 12, 2), run="xla")


def _squares(model, x, y, y_pred, sample_weight, training):
    return tf.reduce_sum(tf.square(y_pred))


@pytest.mark.usefixtures("float64")
def test_any_length_is_exact():
    model = stack((None, 2), layers.GRU(3, return_sequences=True))
    signature = tf.TensorSpec([None, None, 2], tf.float64)

    @tf.function(input_signature=[signature])
    def gradients(x):
        with TracedStep(model, (x, None, None), True, _squares) as tape:
            loss = tf.reduce_sum(tf.square(tape.forward(x)))
        return [f.materialize() for f in tape.sample_gradients(loss)]

    for steps in (3, 5):
        x = tf.constant(normal(2, steps, 2))
        found = gradients(x)
        for i in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x[i : i + 1])))
            alone = tape.gradient(loss, model.trainable_variables)
            for a, b in zip(found, alone):
                np.testing.assert_allclose(a[i], b, rtol=1e-10, atol=1e-12)


class Folded(layers.Layer):
    """Folds nodes, behind the samples or before them, into their axis."""

    def __init__(self, inner, nodes_first):
        super().__init__()
        self.inner, self.nodes_first = inner, nodes_first

    def build(self, shape):
        self.inner.build((None, *shape[2:]))

    def call(self, x):
        # (n, nodes, ...)
        x = self._turned(x)
        sizes = tf.shape(x)
        known = x.shape[2:]
        x = tf.reshape(x, tf.concat([[-1], sizes[2:]], 0))
        x = self.inner(tf.ensure_shape(x, [None, *known]))
        x = tf.reshape(x, tf.concat([sizes[:2], tf.shape(x)[1:]], 0))
        return self._turned(x)

    def _turned(self, x):
        axes = [1, 0, *range(2, x.shape.rank)]
        return tf.transpose(x, axes) if self.nodes_first else x

    def compute_output_shape(self, shape):
        inner = self.inner.compute_output_shape((None, *shape[2:]))
        return *shape[:2], *inner[1:]


FOLDED = {
    "lstm": (lambda: layers.LSTM(3), (None, 4, 2)),
    "gru of any length": (lambda: layers.GRU(3), (None, None, 2)),
    "convolutional": (lambda: layers.ConvLSTM1D(2, 2), (None, 4, 3, 2)),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("nodes_first", [False, True])
@pytest.mark.parametrize("name", FOLDED)
def test_rows_of_any_number_of_nodes_are_exact(name, nodes_first):
    make, shape = FOLDED[name]
    inputs = keras.Input(shape)
    outputs = layers.Dense(2)(Folded(make(), nodes_first)(inputs))
    model = randomized(keras.Model(inputs, outputs))
    x = normal(3, *[size or 4 for size in shape])
    assert_exact(model, x, run="any size")
