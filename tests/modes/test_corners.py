"""The corners of Keras in which a mode must equal `keras.Model`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few

layers = keras.layers
MODES = ["per_sample", "vectorized"]


def _data(n=10):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 6)).astype("float32")
    return x, rng.normal(size=(n, 3)).astype("float32")


def _mlp(cls=keras.Model, **dense):
    inputs = keras.Input((6,))
    x = layers.Dense(5, "tanh", **dense)(inputs)
    return cls(inputs, layers.Dense(3, dtype="float32")(x))


def _assert_equal(ours, plain, rtol=1e-4, atol=1e-5):
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def _logs(logs):
    return {name: float(value) for name, value in logs.items()}


def _pair(make, mode, optimizer=None, loss="mse", **arguments):
    """A model of each kind from the same start, both compiled."""
    pair = []
    for cls, extra in (
        (kpg.PerGradModel, {"gradient_mode": mode}),
        (keras.Model, {}),
    ):
        keras.utils.set_random_seed(5)
        model = make(cls)
        model.compile(
            (optimizer or (lambda: keras.optimizers.SGD(0.1)))(),
            loss,
            jit_compile=arguments.pop("jit_compile", False),
            **arguments,
            **extra,
        )
        pair.append(model)
    return pair


def _assert_trains_alike(pair, *data, **arguments):
    arguments = {"epochs": 2, "verbose": 0, "shuffle": False, **arguments}
    for model in pair:
        keras.utils.set_random_seed(6)
        model.fit(*data, **arguments)
    _assert_equal(*pair)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind", ["dataset", "generator", "py_dataset", "steps_per_execution"]
)
def test_inputs_of_fit(mode, kind):
    x, y = _data(11)  # a short last batch
    arguments = {"batch_size": 4}
    data = (x, y)
    steps = 1
    if kind == "dataset":
        data = (tf.data.Dataset.from_tensor_slices((x, y)).batch(4),)
    if kind == "py_dataset":

        class Batches(keras.utils.PyDataset):
            def __len__(self):
                return 3

            def __getitem__(self, i):
                return x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4]

        data = (Batches(),)
    if kind != "dataset" and len(data) == 1:
        arguments = {}
    if kind == "dataset":
        arguments = {}
    if kind == "steps_per_execution":
        steps = 2
    pair = _pair(_mlp, mode, steps_per_execution=steps)
    if kind == "generator":
        for model in pair:

            def batches():
                while True:
                    for i in range(0, 11, 4):
                        yield x[i : i + 4], y[i : i + 4]

            model.fit(
                batches(),
                steps_per_epoch=3,
                epochs=2,
                verbose=0,
                shuffle=False,
            )
        return _assert_equal(*pair)
    return _assert_trains_alike(pair, *data, **arguments)


@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_train_on_batch_evaluate_predict(mode):
    x, y = _data()
    pair = _pair(_mlp, mode, metrics=["mae"])
    logs = [_logs(m.train_on_batch(x, y, return_dict=True)) for m in pair]
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    pair[0].train_on_batch(x[:1], y[:1])
    pair[1].train_on_batch(x[:1], y[:1])
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


@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_several_inputs_and_outputs(mode):
    x, y = _data()
    pair = _pair(
        _several,
        mode,
        loss={"u": "mse", "v": keras.losses.MeanAbsoluteError("sum")},
        loss_weights={"u": 0.3, "v": 2.0},
        metrics={"u": ["mae"], "v": ["mse"]},
    )
    _assert_trains_alike(
        pair,
        {"a": x, "b": x[::-1].copy()},
        {"u": y, "v": 2 * y},
        sample_weight={"u": np.arange(10.0), "v": np.ones(10)},
        batch_size=4,
    )


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
        inputs = keras.Input((6,))
        h = layers.Dense(3)(layers.Dense(4, "tanh")(inputs))
        return cls(inputs, OUTPUTS[outputs](h))

    x, y = _data()
    targets = (y + shift for shift in range(3))
    y = tf.nest.map_structure(
        lambda _: next(targets), OUTPUTS[outputs](keras.Input((3,)))
    )
    each = ["mse"] * len(y)
    loss = dict(zip(y, each)) if isinstance(y, dict) else each
    for given in (loss, "mse"):
        if len(y) == 1 or given is loss:
            pair = _pair(make, mode, loss=given)
            _assert_trains_alike(pair, x, y, batch_size=4)


def _masked(cls):
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(9, 5, mask_zero=True)(inputs)
    return cls(
        inputs, layers.Dense(3)(layers.LSTM(4, return_sequences=True)(x))
    )


@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_masks_weigh_the_loss(mode):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, (6, 7))
    ids[:, 0] = 1
    y = rng.normal(size=(6, 7, 3)).astype("float32")
    _assert_trains_alike(_pair(_masked, mode), ids, y, batch_size=3)


class Penalty(layers.Layer):
    """Adds a mean and a sum over the batch to the loss."""

    def call(self, x):
        self.add_loss(0.1 * keras.ops.mean(x**2))
        self.add_loss(0.01 * keras.ops.sum(keras.ops.abs(x)))
        return x


def _penalised(cls):
    inputs = keras.Input((6,))
    x = layers.Dense(5, "tanh", activity_regularizer="l2")(inputs)
    return cls(inputs, layers.Dense(3)(Penalty()(x)))


@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
def test_add_loss_and_activity_regularizer(mode):
    _assert_trains_alike(_pair(_penalised, mode), *_data(), batch_size=4)


@pytest.mark.parametrize("mode", few(MODES, ["vectorized"]))
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(
            0.01, use_ema=True, ema_overwrite_frequency=2
        ),
        lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.1),
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), 0.9
        ),
    ],
    ids=["ema", "weight_decay", "schedule"],
)
def test_optimizers(mode, optimizer):
    def make(cls):
        return _mlp(cls, kernel_constraint="unit_norm", bias_regularizer="l1")

    _assert_trains_alike(_pair(make, mode, optimizer), *_data(), batch_size=4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(mode, policy):
    keras.config.set_dtype_policy(policy)
    pair = _pair(_mlp, mode)
    x, y = _data()
    for model in pair:
        model.fit(x, y, batch_size=5, epochs=2, verbose=0, shuffle=False)
    half = 1e-2 if policy == "mixed_bfloat16" else 2e-3
    _assert_equal(*pair, rtol=half, atol=half)
    if policy == "mixed_float16":
        scales = [float(m.optimizer.dynamic_scale.value) for m in pair]
        assert scales[0] == scales[1]


@pytest.mark.parametrize("mode", MODES)
def test_overflow_lowers_the_loss_scale(mode):
    keras.config.set_dtype_policy("mixed_float16")
    cls = {"per_sample": kpg.PerSample, "vectorized": kpg.Vectorized}[mode]
    model = _mlp(kpg.PerGradModel)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=2.0**30
    )
    model.compile(
        optimizer,
        "mse",
        jit_compile=False,
        gradient_mode=cls(kpg.ClippedMean(1.0)),
    )
    before = model.get_weights()
    model.train_on_batch(*_data())
    assert float(optimizer.dynamic_scale.value) == 2.0**29
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_recompiling_changes_the_mode():
    x, y = _data()
    model, plain = _pair(_mlp, "batch")
    for mode in ("vectorized", "batch", "per_sample"):
        model.compile("sgd", "mse", jit_compile=False, gradient_mode=mode)
        plain.compile("sgd", "mse", jit_compile=False)
        for m in (model, plain):
            m.fit(x, y, batch_size=5, verbose=0, shuffle=False)
    _assert_equal(model, plain)
    assert model.gradient_mode.__class__ is kpg.PerSample


def test_callbacks_may_change_the_learning_rate():
    def halve(epoch):
        return 0.1 * 0.5**epoch

    callback = keras.callbacks.LearningRateScheduler(halve)
    _assert_trains_alike(
        _pair(_mlp, "vectorized"), *_data(), batch_size=5, callbacks=[callback]
    )


def test_freezing_takes_effect_at_compile():
    pair = _pair(_mlp, "vectorized")
    for model in pair:
        model.layers[1].trainable = False
        model.compile(
            "sgd",
            "mse",
            jit_compile=False,
            **({"gradient_mode": "vectorized"} if model is pair[0] else {}),
        )
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

    inputs = keras.Input((6,))
    model = kpg.PerGradModel(inputs, layers.Dense(3)(Counted()(inputs)))
    model.compile("sgd", "mse", jit_compile=False, gradient_mode=mode)
    x, y = _data(11)
    model.fit(x, y, batch_size=4, epochs=1, verbose=0)
    after_first = len(traces)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert len(traces) == after_first


def test_online_descent_equals_batches_of_one():
    x, y = _data()
    pair = _pair(
        _mlp,
        kpg.PerSample(updates="sample"),
        lambda: keras.optimizers.Adam(0.01),
        metrics=["mae"],
    )
    ours = pair[0].fit(x, y, batch_size=5, shuffle=False, verbose=0)
    plain = pair[1].fit(x, y, batch_size=1, shuffle=False, verbose=0)
    _assert_equal(*pair)
    assert int(pair[0].optimizer.iterations.value) == 10
    for name, values in plain.history.items():
        np.testing.assert_allclose(ours.history[name], values, rtol=1e-4)


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


def test_variable_shared_outside_its_layer_is_exact():
    """An output matrix tied to the embedding, as language models do."""

    def make(cls):
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

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 9, (6, 5))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for mode in MODES:
        _assert_trains_alike(
            _pair(make, mode, loss=loss), ids, ids, batch_size=3
        )


_CLIPPED = kpg.Vectorized(kpg.ClippedMean(1.0))


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "mode",
    [
        "batch",
        "per_sample",
        "vectorized",
        _CLIPPED,
        kpg.Accumulated(microbatch_size=2),
        kpg.Accumulated(inner=_CLIPPED),
        kpg.Accumulated(steps=2, inner=_CLIPPED),
    ],
    ids=repr,
)
def test_a_batch_without_samples_changes_nothing(mode, run_eagerly):
    for model in _pair(_mlp, mode, run_eagerly=run_eagerly):
        before = model.get_weights()
        assert np.ravel(model.train_on_batch(*_data(0)))[0] == 0
        for a, b in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(a, b)
