"""The corners of Keras in which a mode must equal `keras.Model`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    normal,
    trained,
    unchanged,
)
from tests.modes.big_batch import Added, Batches

layers = keras.layers
MODES = ["per_sample", "vectorized"]


def _data(n=10):
    return normal(n, 6), normal(n, 3, seed=1)


def _mlp(cls=keras.Model, **dense):
    hidden = layers.Dense(5, "tanh", **dense)
    inputs = keras.Input((6,))
    return cls(inputs, layers.Dense(3, dtype="float32")(hidden(inputs)))


def _assert_equal(ours, plain, rtol=1e-4, *, atol=1e-5):
    assert_equal(ours.get_weights(), plain.get_weights(), rtol, atol=atol)


def _logs(logs):
    return {name: float(value) for name, value in logs.items()}


def _pair(make, mode, optimizer=None, *, loss="mse", **arguments):
    """A model of each kind from the same start, both compiled."""
    pair = []
    for cls, given in ((kpg.PerGradModel, mode), (keras.Model, None)):
        keras.utils.set_random_seed(5)
        how = {"jit_compile": False, **arguments}
        if optimizer is not None:
            how["optimizer"] = optimizer()
        pair.append(compiled(make(cls), given, loss, **how))
    return pair


def _assert_trains_alike(pair, *data, **arguments):
    for model in pair:
        trained(model, *data, seed=6, **{"epochs": 2, **arguments})
    _assert_equal(*pair)


def _forever(batches):
    while True:
        yield from (batches[i] for i in range(3))


#: Arguments of `fit` for three batches, the last of them short.
INPUTS = {
    "dataset": lambda *data: {
        "x": tf.data.Dataset.from_tensor_slices(data).batch(4)
    },
    "generator": lambda *data: {
        "x": _forever(Batches(data, (4, 4, 3))),
        "steps_per_epoch": 3,
    },
    "py_dataset": lambda *data: {"x": Batches(data, (4, 4, 3))},
    "steps_per_execution": lambda x, y: {"x": x, "y": y, "batch_size": 4},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_of_fit(mode, kind):
    steps = 2 if kind == "steps_per_execution" else 1
    pair = _pair(_mlp, mode, steps_per_execution=steps)
    for model in pair:
        trained(model, **INPUTS[kind](*_data(11)), epochs=2, seed=6)
    _assert_equal(*pair)


@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_train_on_batch_evaluate_predict(mode):
    x, y = _data()
    pair = _pair(_mlp, mode, metrics=["mae"])
    logs = [_logs(m.train_on_batch(x, y, return_dict=True)) for m in pair]
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    for model in pair:
        model.train_on_batch(x[:1], y[:1])
    _assert_equal(*pair)
    found = [_logs(m.evaluate(x, y, verbose=0, return_dict=True)) for m in pair]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    np.testing.assert_allclose(
        *(m.predict(x, verbose=0) for m in pair), rtol=1e-4, atol=1e-5
    )


def _several(cls):
    """Nested, dict inputs, two outputs, a shared layer, a frozen one."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    shared = layers.Dense(4, "tanh")
    frozen = layers.Dense(4)
    frozen.trainable = False
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, layers.Dense(4, "elu")(inner_in))
    joined = layers.Add()([shared(a), inner(shared(b)), frozen(a)])
    outputs = {
        "u": layers.Dense(3, name="u")(joined),
        "v": layers.Dense(3, name="v")(shared(b)),
    }
    return cls({"a": a, "b": b}, outputs)


OUTPUTS = {
    "list of one": lambda h: [h],
    "dict of one": lambda h: {"u": h},
    "twice": lambda h: [h, h],
    "passed on": lambda h: [h, layers.Identity()(h)],
    "twice by name": lambda h: {"u": h, "v": h},
    "twice and more": lambda h: [h, layers.Dense(3)(h), h],
}


@pytest.mark.parametrize(
    ("outputs", "mode"),
    few(
        [
            *((outputs, mode) for outputs in OUTPUTS for mode in MODES),
            ("list of one", "accumulated"),
            ("passed on", "accumulated"),
        ],
        [(outputs, "vectorized") for outputs in OUTPUTS],
    ),
)
def test_a_tensor_alone_in_a_list_or_given_out_twice(outputs, mode):
    def make(cls):
        parts = layers.Dense(4, "tanh"), layers.Dense(3), OUTPUTS[outputs]
        return net(*parts, shape=(6,), units=None, cls=cls)

    x, y = _data()
    targets = (y + shift for shift in range(3))
    y = tf.nest.map_structure(lambda _: next(targets), make(keras.Model).output)
    each = ["mse"] * len(y)
    loss = dict(zip(y, each)) if isinstance(y, dict) else each
    for given in (loss, "mse"):
        if len(y) == 1 or given is loss:
            pair = _pair(make, mode, loss=given)
            _assert_trains_alike(pair, x, y, batch_size=4)


def _masked(cls):
    table = layers.Embedding(9, 5, mask_zero=True)
    memory = layers.LSTM(4, return_sequences=True)
    return net(table, memory, shape=(7,), dtype="int32", cls=cls)


def _penalised(cls):
    hidden = layers.Dense(5, "tanh", activity_regularizer="l2")
    return net(hidden, Added(), shape=(6,), cls=cls)


def _tied(cls):
    """An output matrix tied to the embedding, as language models do."""

    class Tied(cls):
        def __init__(self):
            super().__init__()
            self.embed = layers.Embedding(9, 4)
            self.dense = layers.Dense(4, "tanh")

        def call(self, ids):
            x = self.dense(self.embed(ids))
            table = keras.ops.transpose(self.embed.embeddings)
            return keras.ops.matmul(x, table)

    return Tied()


def _constrained(cls):
    return _mlp(cls, kernel_constraint="unit_norm", bias_regularizer="l1")


def _ema():
    how = {"use_ema": True, "ema_overwrite_frequency": 2}
    return keras.optimizers.Adam(0.01, **how)


def _weight_decay():
    return keras.optimizers.AdamW(0.01, global_clipnorm=0.1)


def _schedule():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return keras.optimizers.SGD(rate, 0.9)


HALVES = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 0.5**epoch)


X, Y = _data()
SOME = np.random.default_rng(0).integers(0, 3, (6, 7))
SOME[:, 0] = 1
NOISE = normal(6, 7, 3)
WORDS = np.random.default_rng(0).integers(0, 9, (6, 5))
FLAT = {"x": X, "y": Y, "batch_size": 4}
#: The model, arguments of `compile`, arguments of `fit`.
CORNERS = {
    "several inputs and outputs": (
        _several,
        {
            "loss": {"u": "mse", "v": keras.losses.MeanAbsoluteError("sum")},
            "loss_weights": {"u": 0.3, "v": 2.0},
            "metrics": {"u": ["mae"], "v": ["mse"]},
        },
        {
            "x": {"a": X, "b": X[::-1].copy()},
            "y": {"u": Y, "v": 2 * Y},
            "sample_weight": {"u": np.arange(10.0), "v": np.ones(10)},
            "batch_size": 4,
        },
    ),
    "masks": (_masked, {}, {"x": SOME, "y": NOISE, "batch_size": 3}),
    "added losses": (_penalised, {}, FLAT),
    "moving average": (_constrained, {"optimizer": _ema}, FLAT),
    "weight decay": (_constrained, {"optimizer": _weight_decay}, FLAT),
    "schedule": (_constrained, {"optimizer": _schedule}, FLAT),
    "rate of a callback": (_mlp, {}, {**FLAT, "callbacks": [HALVES]}),
    "tied": (
        _tied,
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        {"x": WORDS, "y": WORDS, "batch_size": 3},
    ),
}


@pytest.mark.parametrize(
    ("corner", "mode"),
    few(
        [(corner, mode) for corner in CORNERS for mode in MODES],
        [*((corner, "vectorized") for corner in CORNERS), ("tied", MODES[0])],
    ),
)
def test_trains_as_keras_does(corner, mode):
    make, compiling, fitting = CORNERS[corner]
    _assert_trains_alike(_pair(make, mode, **compiling), **fitting)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(mode, policy):
    keras.config.set_dtype_policy(policy)
    pair = _pair(_mlp, mode)
    for model in pair:
        trained(model, *_data(), batch_size=5, epochs=2)
    half = 1e-2 if policy == "mixed_bfloat16" else 2e-3
    _assert_equal(*pair, rtol=half, atol=half)
    if policy == "mixed_float16":
        scales = [float(m.optimizer.dynamic_scale.value) for m in pair]
        assert scales[0] == scales[1]


CLIPPED = kpg.Vectorized(kpg.ClippedMean(1.0))
TWO_STEPS = kpg.Accumulated(steps=2, microbatch_size=2, inner=CLIPPED)


@pytest.mark.parametrize(
    "mode",
    [
        kpg.PerSample(kpg.ClippedMean(1.0)),
        CLIPPED,
        kpg.Accumulated(microbatch_size=2),
        TWO_STEPS,
    ],
    ids=repr,
)
def test_overflow_lowers_the_loss_scale(mode):
    keras.config.set_dtype_policy("mixed_float16")
    sgd = keras.optimizers.SGD(0.1)
    optimizer = keras.optimizers.LossScaleOptimizer(sgd, 2.0**30)
    model = _mlp(kpg.PerGradModel)
    compiled(model, mode, optimizer=optimizer, jit_compile=False)
    with unchanged(model):
        for _ in range(getattr(mode, "steps", 1)):
            model.train_on_batch(X, Y)
    assert float(optimizer.dynamic_scale.value) == 2.0**29


def test_recompiling_changes_the_mode():
    model, plain = _pair(_mlp, "batch")
    for mode in ("vectorized", "batch", "per_sample"):
        for each, given in ((model, mode), (plain, None)):
            compiled(each, given, jit_compile=False)
            trained(each, *_data(), batch_size=5)
    _assert_equal(model, plain)
    assert model.gradient_mode.__class__ is kpg.PerSample


def test_freezing_takes_effect_at_compile():
    pair = _pair(_mlp, "vectorized")
    for model, mode in zip(pair, ("vectorized", None)):
        model.layers[1].trainable = False
        compiled(model, mode, jit_compile=False)
    before = pair[0].layers[1].get_weights()
    _assert_trains_alike(pair, *_data())
    np.testing.assert_array_equal(before[0], pair[0].layers[1].get_weights()[0])


@pytest.mark.parametrize("mode", MODES)
def test_no_retracing_from_step_to_step(mode):
    traces = []

    class Counted(layers.Layer):
        def call(self, x):
            traces.append(1)
            return x

    model = compiled(net(Counted(), shape=(6,)), mode, jit_compile=False)
    trained(model, *_data(11), batch_size=4)
    after_first = len(traces)
    trained(model, *_data(11), batch_size=4, epochs=2)
    assert len(traces) == after_first


def test_online_descent_equals_batches_of_one():
    mode = kpg.PerSample(updates="sample")
    adam = {"optimizer": lambda: keras.optimizers.Adam(0.01)}
    ours, plain = _pair(_mlp, mode, metrics=["mae"], **adam)
    trained(ours, *_data(), batch_size=5)
    trained(plain, *_data(), batch_size=1)
    _assert_equal(ours, plain)
    assert int(ours.optimizer.iterations.value) == 10
    for name, values in plain.history.history.items():
        found = ours.history.history[name]
        np.testing.assert_allclose(found, values, rtol=1e-4)


def test_one_functional_model_spoils_no_subclass():
    """Plain Keras turns the class itself functional (keras#17270)."""
    _mlp(kpg.PerGradModel)

    class Net(kpg.PerGradModel):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    class Mine(kpg.PerGradModel):
        pass

    inputs = keras.Input((6,))
    mine = Mine(inputs, layers.Dense(3)(inputs))
    x, _ = _data()
    for model in (Net(), mine):
        model.compile("sgd", "mse", gradient_mode="vectorized")
        assert model.predict(x, verbose=0).shape == (10, 3)
        assert isinstance(model, kpg.PerGradModel)
    assert not issubclass(Net, keras.src.models.functional.Functional)


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "mode",
    [
        "batch",
        "per_sample",
        "vectorized",
        CLIPPED,
        kpg.Accumulated(microbatch_size=2),
        kpg.Accumulated(inner=CLIPPED),
        kpg.Accumulated(steps=2, inner=CLIPPED),
    ],
    ids=repr,
)
def test_a_batch_without_samples_changes_nothing(mode, run_eagerly):
    for model in _pair(_mlp, mode, run_eagerly=run_eagerly):
        with unchanged(model):
            assert np.ravel(model.train_on_batch(*_data(0)))[0] == 0
