"""The copy of a step finds what a trace of its own would find."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import keras_pergrad as kpg
from keras_pergrad.keras_internals.losses import total_loss
from keras_pergrad.samples import Tape, trial_copy, trial_run
from keras_pergrad.samples.trial_findings import Observed
from tests import oracle
from tests.samples.own_layer import between
from tests.samples.rules.exact import randomized, stack
from tests.samples.test_own_layers import LAYERS, ONE_BY_ONE

pytestmark = pytest.mark.usefixtures("float64")


class Counts(layers.Layer):
    """Assigns, and reads what it has assigned."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), trainable=False)
        self.seen = self.add_weight(shape=(), trainable=False)
        self.scale = self.add_weight(shape=shape[-1:])

    def call(self, x):
        self.calls.assign_add(1.0)
        self.seen.assign(ops.max(x))
        return x * self.scale / self.calls


class Centred(layers.Layer):
    """Mixes samples."""

    def call(self, x):
        return x - ops.mean(x, 0)


class Graph(layers.Layer):
    """Calls a `tf.function` with a condition and a loop."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], shape[-1]))

    @tf.function
    def run(self, x):
        for _ in tf.range(2):
            x = tf.cond(
                tf.size(x) > 0, lambda x=x: tf.tanh(x @ self.w), lambda x=x: x
            )
        return x

    def call(self, x):
        return self.run(x)


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


def _two_of_each():
    inputs = {
        "a": keras.Input((4,), name="a"),
        "b": keras.Input((3,), dtype="int32", name="b"),
    }
    b = layers.Flatten()(layers.Embedding(9, 4)(inputs["b"]))
    x = layers.Concatenate()([layers.Dense(4)(inputs["a"]), b])
    return randomized(
        keras.Model(inputs, [layers.Dense(2)(x), layers.Dense(1)(x)])
    )


def _masked():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    x = layers.LSTM(3, return_sequences=True)(x)
    return randomized(keras.Model(inputs, layers.Dense(2)(x)))


def _in_line(*own):
    return stack((4,), layers.Dense(5), *own, layers.Dense(2))


MODELS = {
    "dropout": lambda: _in_line(layers.Dropout(0.5), layers.GaussianNoise(1)),
    "state": lambda: _in_line(Counts()),
    "function": lambda: _in_line(Graph()),
    "penalty": lambda: _in_line(Penalty()),
    "activity": lambda: _in_line(layers.Dense(3, activity_regularizer="l2")),
    "two of each": _two_of_each,
    "masked": _masked,
    "mixes": lambda: _in_line(Centred()),
    "batch normalization": lambda: _in_line(layers.BatchNormalization()),
    **{
        name: lambda case=case: between(*case)
        for name, case in LAYERS.items()
        if name in ("class token", "tied", "time-major")
    },
    **{
        name: lambda case=case: between(*case[1])
        for name, case in ONE_BY_ONE.items()
    },
}


def _specs(model):
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype),
        (model.input, model.output),
    )


def _found(model, x, y, copy):
    """Return what the trial of a step finds, to be compared."""
    tape = Tape(model, (x, y, None))
    with tape:
        loss = total_loss(model, x, y, tape.forward(x), None)
    step = Observed(tape, loss) if copy else None
    trial_run._FOUND.pop(model, None)
    try:
        found = trial_run.exchange_of(tape, step=step)
    except trial_run.CannotTry as error:
        return str(error)
    refusals = [(layer, str(error)) for layer, error in found.refusals]
    return found.seen, refusals, found.assigned, found.counted, found.counting


@pytest.mark.parametrize("name", MODELS)
def test_finds_what_a_trace_finds(name, monkeypatch):
    model = MODELS[name]()
    model.compile("sgd", "mse")
    copies, before = [], model.get_weights()

    def spy(*args):
        copies.append(trial_copy.copied(*args))
        return copies[-1]

    monkeypatch.setattr(trial_run, "copied", spy)
    both = []

    def compute(x, y):
        both.extend(_found(model, x, y, copy) for copy in (False, True))

    tf.function(compute, autograph=False).get_concrete_function(*_specs(model))
    assert both[::2] == both[1::2]
    assert copies
    assert None not in copies
    for value, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(value, other)


def _fit(model, x, y, mode=None):
    """Trains over steps of 4 samples, the last one of fewer if some remain.

    Returns the weights.
    """
    model.compile(
        keras.optimizers.SGD(0.1),
        "mse",
        **({} if mode is None else {"gradient_mode": mode}),
    )
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    model.fit(data, verbose=0, shuffle=False)
    return model.get_weights()


def _assert_trained_alike(model, x=None, own=()):
    """Compares `fit` with plain Keras; variables of its `own` included."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(11, 4)) if x is None else x
    y = rng.normal(size=(len(x), 2))
    weights, start = model.get_weights(), [v.numpy() for v in own]
    found = _fit(kpg.PerGradModel.from_model(model), x, y, kpg.Vectorized())
    left = [v.numpy() for v in own]
    model.set_weights(weights)
    for variable, value in zip(own, start):
        variable.assign(value)
    oracle.assert_agree(found, _fit(model, x, y))
    for variable, value in zip(own, left):
        np.testing.assert_allclose(value, variable.numpy(), rtol=1e-10)


@pytest.mark.parametrize("name", ["state", "function", "penalty", "activity"])
def test_fit_is_that_of_keras(name):
    """Its state included: the trial leaves no trace, and eats no batch."""
    _assert_trained_alike(MODELS[name]())


def _uses_a_table():
    inputs = keras.Input((3,), dtype="int64")
    x = layers.IntegerLookup(vocabulary=[1, 2, 3])(inputs)
    x = layers.Flatten()(layers.Embedding(4, 5)(x))
    return randomized(keras.Model(inputs, layers.Dense(2)(x)))


def test_a_step_that_needs_more_is_traced():
    """A loss that reads the data set again would take a batch from it."""
    model = stack((4,), layers.Dense(5), layers.Dense(2))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(11, 4)), rng.normal(size=(11, 2))
    model.compile("sgd", "mse")
    data = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(4))
    copies = []

    def compute(iterator):
        x, y = next(iterator)
        tape = Tape(model, (tf.identity(x), tf.identity(y), None))
        with tape:
            loss = total_loss(model, x, y, tape.forward(tape.batch[0]), None)
        copies.append(trial_copy.copied(tape, [loss]))
        return y

    function = tf.function(compute, autograph=False)
    np.testing.assert_array_equal(function(data), y[:4])
    assert copies == [None]
    np.testing.assert_array_equal(next(data)[1], y[4:8])


def _reconstructing(layer):
    """Return a model, and its traced gradients with inputs as the targets."""
    model = stack((4,), layers.Dense(4), layer, layers.Dense(4))
    model.compile("sgd", "mse")

    def compute(x):
        tape = Tape(model, (x, x, None))
        with tape:
            loss = total_loss(model, x, x, tape.forward(x), None)
        n = tf.cast(tf.shape(x)[0], x.dtype)
        return [f.materialize() * n for f in tape.sample_gradients(loss)]

    function = tf.function(compute, autograph=False)
    specs = tf.TensorSpec([None, 4], "float64")
    return model, functools.partial(function.get_concrete_function, specs)


def test_inputs_that_are_the_targets():
    model, trace = _reconstructing(layers.LayerNormalization())
    x = np.random.default_rng(0).normal(size=(5, 4))
    oracle.check(trace()(tf.constant(x)), model, x, x)


def test_mixing_of_inputs_that_are_the_targets():
    """A trial that exchanged the targets, not the inputs, would see nothing."""
    _, trace = _reconstructing(Centred())
    with pytest.raises(ValueError, match=r"'centred' .* mixes the samples"):
        trace()


class Loop(layers.Layer):
    """Assigns to a variable in a loop and reads it behind, or reversed."""

    def __init__(self, mixes):
        super().__init__()
        self.mixes = mixes

    def build(self, shape):
        self.v = tf.Variable(tf.zeros(shape[-1:], "float64"), trainable=False)

    def call(self, x):
        def body(i, h):
            if self.mixes:
                self.v.assign(tf.reduce_mean(h, 0))
                return i + 1, tf.tanh(h)
            return i + 1, tf.tanh(h - self.v)

        _, h = tf.while_loop(lambda i, h: i < 2, body, (0, x))
        if self.mixes:
            return h - self.v
        self.v.assign(tf.reduce_mean(x, 0))
        return h


def test_a_loop_that_assigns_before_it_is_read():
    """The copy of a differentiated loop would come after its neighbours."""
    ours = kpg.PerGradModel.from_model(_in_line(Loop(mixes=True)))
    x, y = np.ones((11, 4)), np.ones((11, 2))
    with pytest.raises(ValueError, match="mixes the samples"):
        _fit(ours, x, y, kpg.Vectorized())


def test_a_loop_that_reads_before_it_is_assigned():
    loop = Loop(mixes=False)
    _assert_trained_alike(_in_line(loop), own=[loop.v])


class Scaled(kpg.PerGradModel):
    """Its forward pass reads the mean target, computed before."""

    mean = None

    def train_step(self, data):
        self.mean = tf.reduce_mean(data[1], 0)
        return super().train_step(data)

    def call(self, x, training=None):
        found = super().call(x, training=training)
        return found if self.mean is None else found * (1 + self.mean)


def test_what_is_computed_before_from_the_targets():
    inputs = keras.Input((4,))
    model = Scaled(inputs, layers.Dense(2)(inputs))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(11, 4)), rng.normal(size=(11, 2))
    before = model.get_weights()
    with pytest.raises((ValueError, TypeError), match=r"out of scope|mixes"):
        _fit(model, x, y, kpg.Vectorized())
    oracle.assert_agree(model.get_weights(), before)


class Called(layers.Layer):
    """A function reads a variable that is assigned afterwards."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3))
        self.v = tf.Variable(tf.ones([], "float64"), trainable=False)
        self.function = tf.function(
            lambda x: tf.tanh(tf.matmul(x, self.w) * self.v)
        )

    def call(self, x):
        found = self.function(x)
        self.v.assign(self.v + 1.0)
        return found


def test_a_function_reads_what_is_assigned_afterwards():
    layer = Called()
    _assert_trained_alike(_in_line(layer), own=[layer.v])


def test_a_known_number_of_samples_is_traced(monkeypatch):
    model = stack((4,), layers.Dense(5), layers.Dense(2))

    def fail(*args):
        raise AssertionError("copied")

    monkeypatch.setattr(trial_run, "copied", fail)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4)), rng.normal(size=(8, 2))
    weights = model.get_weights()
    ours = kpg.PerGradModel.from_model(model)
    ours.compile("sgd", "mse", gradient_mode=kpg.Vectorized())
    ours.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    found = ours.get_weights()
    model.set_weights(weights)
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    oracle.assert_agree(found, model.get_weights())


def test_a_table_is_traced():
    x = np.random.default_rng(0).integers(1, 5, (11, 3))
    _assert_trained_alike(_uses_a_table(), x)
