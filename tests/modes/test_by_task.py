"""`ByTask` against a tape for each loss, with the aggregation in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.modes.task_networks import ENGINES

layers = keras.layers
RATE = 0.1


pytestmark = pytest.mark.usefixtures("float64")


def mlp(cls=kpg.PerGradModel, frozen=False):
    inputs = keras.Input((6,))
    trunk = layers.Dense(7, "tanh", kernel_regularizer="l2")(inputs)
    trunk = layers.BatchNormalization()(trunk)
    trunk = layers.Dense(5, "tanh")(trunk)
    return cls(inputs, [_head("a", 3)(trunk), _head("b", 2)(trunk)])


def _head(name, units):
    return layers.Dense(units, name=name, bias_regularizer="l2")


def recurrent(cls=kpg.PerGradModel):
    """Tied embeddings, a mask, an LSTM, a normalisation."""
    inputs = keras.Input((5,), dtype="int32")
    table = layers.ReversibleEmbedding(9, 4, mask_zero=True)
    h = table(inputs)
    h = layers.LayerNormalization()(h)
    h = layers.LSTM(4, return_sequences=True)(h)
    words = layers.Activation("softmax", name="a")(table(h, reverse=True))
    ends = layers.LSTM(3)(h)
    return cls(inputs, {"a": words, "b": layers.Dense(2, name="b")(ends)})


def convolutional(cls=kpg.PerGradModel):
    inputs = keras.Input((6, 6, 2))
    h = layers.Conv2D(4, 3, activation="elu")(inputs)
    h = layers.GroupNormalization(2)(h)
    a = layers.Dense(3, name="a")(layers.GlobalAveragePooling2D()(h))
    b = layers.Conv2D(1, 1, name="b")(h)
    return cls(inputs, {"a": a, "b": b})


def data(model, n=6, seed=0):
    rng = np.random.default_rng(seed)
    if model.input.dtype == "int32":
        x = rng.integers(0, 9, (n, 5))
        x[:, 0] = 1
        return x, {"a": (x + 1) % 9, "b": rng.normal(size=(n, 2))}
    x = rng.normal(size=(n, *model.input.shape[1:]))
    outputs = keras.tree.map_structure(lambda t: t.shape[1:], model.output)
    if isinstance(outputs, dict):
        return x, {k: rng.normal(size=(n, *s)) for k, s in outputs.items()}
    return x, [rng.normal(size=(n, 3)), -rng.normal(size=(n, 2))]


def task_gradients(model, losses, x):
    """One tape a loss: `losses` are functions of the model's outputs."""
    found = []
    for loss in losses:
        with tf.GradientTape() as tape:
            value = loss(model(x, training=True))
        found.append(tape.gradient(value, model.trainable_variables))
    return [
        [None if g is None else np.asarray(tf.convert_to_tensor(g)) for g in t]
        for t in found
    ]


def aggregated(parts, weigh):
    """NumPy: the weights by the Gramian of what is shared, then the sums."""
    shared = [sum(g is not None for g in c) > 1 for c in zip(*parts)]
    rows = np.stack(
        [
            np.concatenate(
                [
                    np.zeros(v.shape).ravel() if g is None else g.ravel()
                    for g, v, s in zip(t, _first(parts), shared)
                    if s
                ]
            )
            for t in parts
        ]
    )
    weights = weigh(rows @ rows.T)
    sums = []
    for column, is_shared in zip(zip(*parts), shared):
        factors = weights if is_shared else np.ones(len(parts))
        sums.append(
            sum(f * g for f, g in zip(factors, column) if g is not None)
        )
    return sums, weights, rows


def _first(parts):
    return [next(g for g in c if g is not None) for c in zip(*parts)]


def upgrad_of_two(gramian):
    """Each gradient without its part against the other, the mean, times 2."""
    weights = np.ones(2)
    if gramian[0, 1] < 0:
        weights[0] -= gramian[0, 1] / gramian[0, 0]
        weights[1] -= gramian[0, 1] / gramian[1, 1]
    return weights


CASES = {
    "mlp": (mlp, ["mse", "mae"], [0.7, 2.0]),
    "recurrent": (
        recurrent,
        {"a": "sparse_categorical_crossentropy", "b": "mse"},
        {"a": 1.0, "b": 3.0},
    ),
    "convolutional": (convolutional, {"a": "mse", "b": "mae"}, None),
}


def _compiled(make, loss, weights, mode, cls=kpg.PerGradModel, **how):
    keras.utils.set_random_seed(3)
    model = make(cls)
    extra = {} if mode is None else {"gradient_mode": mode}
    sgd = keras.optimizers.SGD(RATE)
    model.compile(sgd, loss, loss_weights=weights, **how, **extra)
    return model


def _step(model, *batch):
    before = [v.numpy() for v in model.trainable_variables]
    logs = model.train_on_batch(*batch, return_dict=True)
    after = [v.numpy() for v in model.trainable_variables]
    return [(b - a) / RATE for b, a in zip(before, after)], logs


def _loss(name, key, weight, y):
    function = keras.losses.get(name)

    def value(outputs):
        loss = keras.losses.MeanSquaredError()
        if name == "mae":
            loss = keras.losses.MeanAbsoluteError()
        if name.startswith("sparse"):
            loss = keras.losses.SparseCategoricalCrossentropy()
        return weight * loss(y[key], outputs[key])

    assert function is not None
    return value


def _regularised(model):
    values = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(values)
        total = tf.add_n(
            [tf.zeros([], tf.float64)]
            + [
                v.regularizer(v.value)
                for v in model.trainable_variables
                if v.regularizer is not None
            ]
        )
    gradients = tape.gradient(total, values)
    return [0.0 if g is None else g.numpy() for g in gradients]


@pytest.mark.parametrize(
    ("case", "engine"),
    [("mlp", e) for e in ENGINES]
    + [("recurrent", "graph")]
    + [pytest.param("recurrent", "xla", marks=pytest.mark.slow)]
    + [("convolutional", "graph")],
)
def test_update_is_that_of_a_tape_for_each_loss(case, engine):
    make, loss, weights = CASES[case]
    if case == "recurrent" and not hasattr(layers, "ReversibleEmbedding"):
        pytest.skip("this Keras has no ReversibleEmbedding")
    mode = kpg.ByTask(kpg.aggregations.UPGrad(norm_eps=0.0, reg_eps=1e-13))
    model = _compiled(make, loss, weights, mode, **ENGINES[engine])
    x, y = data(model)
    keys = list(loss) if isinstance(loss, dict) else range(len(loss))
    losses = [
        _loss(loss[k], k, 1.0 if weights is None else weights[k], y)
        for k in keys
    ]
    parts = task_gradients(model, losses, x)
    state = model.get_weights()
    expected, chosen, rows = aggregated(parts, upgrad_of_two)
    penalties = _regularised(model)
    model.set_weights(state)
    update, logs = _step(model, x, y)
    for found, sums, penalty in zip(update, expected, penalties, strict=True):
        np.testing.assert_allclose(found, sums + penalty, rtol=1e-8, atol=1e-8)
    cosine = rows[0] @ rows[1] / np.linalg.norm(rows, axis=1).prod()
    assert logs["task_cosine_a_b"] == pytest.approx(cosine, abs=1e-6)
    assert logs["task_conflicts"] == float(cosine < 0)
    assert logs["task_weight_a"] == pytest.approx(chosen[0], rel=1e-6)


def two_losses(cls=kpg.PerGradModel):
    """Three outputs, one without a loss, one that two losses look at."""
    inputs = keras.Input((6,))
    trunk = layers.Dense(5, "tanh", activity_regularizer="l2")(inputs)
    trunk = layers.Dense(5, "tanh", name="trunk")(trunk)
    return cls(inputs, [layers.Dense(2, name=n)(trunk) for n in "abc"])


def masked(cls=kpg.PerGradModel):
    inputs = keras.Input((4,), dtype="int32")
    h = layers.Embedding(9, 4, mask_zero=True)(inputs)
    h = layers.Dense(3, "tanh")(h)
    return cls(inputs, {n: layers.Dense(2, name=n)(h) for n in "ab"})


def _trained_alike(make, loss, x, y, sample_weight=None, **how):
    """Train by ByTask("mean") and by keras.Model; compare weights and logs."""
    trained = []
    for mode, cls in (
        (kpg.ByTask("mean"), kpg.PerGradModel),
        (None, keras.Model),
    ):
        model = _compiled(make, loss, None, mode, cls, **how)
        history = model.fit(
            x, y, 4, 2, 0, sample_weight=sample_weight, shuffle=False
        ).history
        trained.append((model.get_weights(), history))
    (ours, logs), (plain, theirs) = trained
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
    for name, values in theirs.items():
        assert logs[name] == pytest.approx(values, rel=1e-10)
    return logs


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_without_an_aggregation_it_is_plain_keras():
    """Losses of None and of several kinds, add_loss, weights, a short batch."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, 6))
    y = [rng.normal(size=(6, 2)) for _ in range(3)]
    weights = [np.array([0.0, 1, 2, 0, 1, 3])] * 3
    logs = _trained_alike(
        two_losses,
        ["mse", None, keras.losses.MeanAbsoluteError(reduction="sum")],
        x,
        y,
        weights,
        metrics=[["mae"], None, ["mse"]],
    )
    assert {"task_weight_a", "task_weight_c", "task_cosine_a_c"} < set(logs)
    assert "task_weight_b" not in logs
    assert logs["task_weight_a"] == [1.0, 1.0]


def test_masks_in_a_dict_of_outputs():
    x = np.array([[1, 2, 0, 0], [3, 4, 5, 6], [7, 0, 0, 0], [1, 8, 2, 0]])
    y = {n: np.random.default_rng(4).normal(size=(4, 4, 2)) for n in "ab"}
    weights = {"a": "sum_over_batch_size", "b": "mean_with_sample_weight"}
    if keras.__version__ < "3.9":
        weights["b"] = "sum"
    loss = {n: keras.losses.MeanSquaredError(r) for n, r in weights.items()}
    _trained_alike(masked, loss, x, y)


def test_names_of_several_losses_of_an_output():
    loss = {"a": ["mse", "mae"], "b": ["mse"]}
    model = _compiled(convolutional, loss, None, kpg.ByTask("mean"))
    _, logs = _step(model, *data(model))
    names = {n.removeprefix("task_weight_") for n in logs if "_weight_" in n}
    assert names == {"a_mse", "a_mae", "b"}


def test_chosen_losses_are_tasks_and_the_others_are_added():
    """A group of losses is one task, add_loss another; one is in none."""
    mode = kpg.ByTask(
        kpg.aggregations.UPGrad(norm_eps=0.0, reg_eps=1e-13),
        losses={"both": ["a", "b"], "small": "add_loss/small"},
    )

    def make(cls):
        inputs = keras.Input((6,))
        trunk = layers.Dense(
            5, "tanh", activity_regularizer="l2", name="small"
        )(inputs)
        return cls(inputs, [layers.Dense(2, name=n)(trunk) for n in "abc"])

    model = _compiled(make, ["mse", "mse", "mse"], None, mode)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, 6))
    y = [3 * rng.normal(size=(6, 2)) for _ in range(3)]
    mse = [_loss("mse", k, 1.0, y) for k in range(3)]
    losses = [
        lambda out: mse[0](out) + mse[1](out),
        lambda out: tf.add_n(model.losses),
        mse[2],
    ]
    *parts, rest = task_gradients(model, losses, x)
    expected = _padded(parts)
    update, logs = _step(model, x, y)
    for found, sums, other in zip(update, expected, rest, strict=True):
        other = 0.0 if other is None else other
        np.testing.assert_allclose(found, sums + other, rtol=1e-8, atol=1e-8)
    assert {"task_weight_both", "task_weight_small"} < set(logs)


def _padded(parts):
    """As `aggregated`, where no task uses some variables."""
    used = [any(g is not None for g in c) for c in zip(*parts)]
    known = [[g for g, u in zip(t, used) if u] for t in parts]
    sums = iter(aggregated(known, upgrad_of_two)[0])
    return [next(sums) if u else 0.0 for u in used]


@pytest.mark.parametrize("overflows", [False, True])
def test_loss_scale(overflows):
    """Half precision: an overflow in one task makes no update."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("mixed_float16")
    inputs = keras.Input((6,))
    trunk = layers.Dense(4, "tanh")(inputs)
    heads = [layers.Dense(2, name=n, dtype="float32")(trunk) for n in "ab"]
    model = kpg.PerGradModel(inputs, heads)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(RATE), initial_scale=2.0**10
    )
    model.compile(optimizer, "mse", gradient_mode=kpg.ByTask())
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    y = [x[:, :2], (1e9 if overflows else 1) * x[:, 2:4]]
    before = model.get_weights()
    model.train_on_batch(x, y)
    moved = [np.abs(a - b).max() for a, b in zip(before, model.get_weights())]
    assert np.isfinite(moved).all()
    assert (max(moved) == 0) == overflows


def test_it_is_saved_with_the_model(tmp_path):
    mode = kpg.ByTask(
        kpg.aggregations.MGDA(), losses={"one": ["a"], "two": ["b"]}
    )
    model = _compiled(mlp, ["mse", "mae"], None, mode)
    _step(model, *data(model))
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert repr(loaded.gradient_mode) == repr(mode)
    assert isinstance(loaded.gradient_mode.aggregation, kpg.aggregations.MGDA)
    assert "task_weight_one" in _step(loaded, *data(model))[1]


def test_arguments_that_are_refused():
    with pytest.raises(ValueError, match="weighs samples by their norms"):
        kpg.ByTask(kpg.ClippedMean(1.0))
    for losses in ("a", 3, [1, 2]):
        with pytest.raises(TypeError, match="list of different names"):
            kpg.ByTask(losses=losses)
    for losses in (["a", "a"], {"x": ["a"], "y": "a"}, {"x": []}):
        with pytest.raises(ValueError, match="each loss stands in one task"):
            kpg.ByTask(losses=losses)


class OwnLoss(kpg.PerGradModel):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


def _apart(cls):
    """Two nets that share nothing."""
    inputs = keras.Input((6,))
    return cls(inputs, [_head("a", 3)(inputs), _head("b", 2)(inputs)])


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("make", "loss", "losses", "match"),
    [
        (lambda cls: mlp(OwnLoss), ["mse", "mse"], None, "overrides compute"),
        (mlp, ["mse", None], None, "at least two tasks"),
        (mlp, ["mse", "mse"], ["a", "q"], "names 'q'.*'a', 'b'"),
        (mlp, ["mse", "mse"], ["a", "add_loss/b"], "gave nothing to add_loss"),
        (_apart, ["mse", "mse"], None, "nothing can conflict"),
    ],
)
def test_models_that_are_refused(make, loss, losses, match):
    model = _compiled(make, loss, None, kpg.ByTask(losses=losses))
    x, y = data(mlp())
    before = model.get_weights()
    with pytest.raises(ValueError, match=match):
        model.train_on_batch(x, y)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    model.compile("sgd", loss)
    model.train_on_batch(x, y)
