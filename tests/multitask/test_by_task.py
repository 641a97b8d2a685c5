"""`ByTask` against a tape for each loss, with the aggregation in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import compiled, normal, trained, unchanged
from tests.modes.big_batch import assert_same
from tests.multitask import task_networks
from tests.multitask.task_networks import ENGINES, OwnLoss

layers = keras.layers
RATE = 0.1


pytestmark = pytest.mark.usefixtures("float64")


def mlp(cls=kpg.PerGradModel):
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


def data(model, seed=8):
    """Six samples; with the seed 8 the tasks of every case are in conflict."""
    rng = np.random.default_rng(seed)
    if model.input.dtype == "int32":
        x = rng.integers(0, 9, (6, 5))
        x[:, 0] = 1
        return x, {"a": (x + 1) % 9, "b": rng.normal(size=(6, 2))}
    x = rng.normal(size=(6, *model.input.shape[1:]))
    return x, keras.tree.map_structure(
        lambda t: rng.normal(size=(6, *t.shape[1:])), model.output
    )


def task_gradients(model, losses, x):
    """One tape a loss: `losses` are functions of the model's outputs."""
    found = []
    for loss in losses:
        with tf.GradientTape() as tape:
            value = loss(model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        found.append(
            [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        )
    return found


def aggregated(parts, weigh):
    """NumPy: the weights by the Gramian of what is shared, then the sums."""
    columns, shared = [], []
    for column in zip(*parts):
        found = [0.0 if g is None else g for g in column]
        columns.append(np.stack(np.broadcast_arrays(*found)))
        shared.append(sum(g is not None for g in column) > 1)
    rows = np.concatenate(
        [c.reshape(len(c), -1) for c, s in zip(columns, shared) if s], 1
    )
    weights, ones = weigh(rows @ rows.T), np.ones(len(parts))
    sums = [
        np.tensordot(weights if s else ones, c, 1)
        for c, s in zip(columns, shared)
    ]
    return sums, weights, rows


def upgrad_of_two(gramian):
    """Each gradient without its part against the other, the mean, times 2."""
    weights = np.ones(2)
    if gramian[0, 1] < 0:
        weights[0] -= gramian[0, 1] / gramian[0, 0]
        weights[1] -= gramian[0, 1] / gramian[1, 1]
    return weights


MSE = keras.losses.MeanSquaredError(dtype="float64")
MAE = keras.losses.MeanAbsoluteError(dtype="float64")
LABELS = keras.losses.SparseCategoricalCrossentropy(dtype="float64")
CASES = {
    "mlp": (mlp, [MSE, MAE], [0.7, 2.0]),
    "recurrent": (recurrent, {"a": LABELS, "b": MSE}, {"a": 1.0, "b": 3.0}),
    "convolutional": (convolutional, {"a": MSE, "b": MAE}, None),
}


def _compiled(make, loss, weights, *, mode, **how):
    keras.utils.set_random_seed(3)
    model = make(kpg.PerGradModel if mode else keras.Model)
    how |= {"rate": RATE, "loss_weights": weights}
    return compiled(model, mode, loss, **how)


def _step(model, *batch, **how):
    before = [v.numpy() for v in model.trainable_variables]
    logs = model.train_on_batch(*batch, return_dict=True, **how)
    after = [v.numpy() for v in model.trainable_variables]
    return [(b - a) / RATE for b, a in zip(before, after)], logs


def _loss(loss, key, weight, *, y):
    return lambda outputs: weight * loss(y[key], outputs[key])


def _penalties(model):
    regularised = [v for v in model.trainable_variables if v.regularizer]
    terms = [v.regularizer(v.value) for v in regularised]
    return tf.add_n([tf.zeros([], tf.float64), *terms])


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
    mode = kpg.ByTask(task_networks.upgrad())
    model = _compiled(make, loss, weights, mode=mode, **ENGINES[engine])
    agrees = case == "convolutional"  # Its tasks do, with another seed.
    x, y = data(model, seed=0 if agrees else 8)
    keys = list(loss) if isinstance(loss, dict) else range(len(loss))
    losses = [
        _loss(loss[k], k, weights[k] if weights else 1.0, y=y) for k in keys
    ]
    losses.append(lambda outputs: _penalties(model))
    *parts, penalties = task_gradients(model, losses, x)
    expected, chosen, rows = aggregated(parts, upgrad_of_two)
    update, logs = _step(model, x, y)
    for found, sums, penalty in zip(update, expected, penalties, strict=True):
        right = sums if penalty is None else sums + penalty
        np.testing.assert_allclose(found, right, rtol=1e-8, atol=1e-8)
    cosine = rows[0] @ rows[1] / np.linalg.norm(rows, axis=1).prod()
    assert logs["task_cosine_a_b"] == pytest.approx(cosine, abs=1e-6)
    assert (cosine > 0) == agrees
    assert logs["task_conflicts"] == float(cosine < 0)
    assert logs["task_weight_a"] == pytest.approx(chosen[0], rel=1e-6)


def two_losses(cls=kpg.PerGradModel):
    """Three outputs, and a loss that a layer adds."""
    inputs = keras.Input((6,))
    small = layers.Dense(5, "tanh", activity_regularizer="l2", name="small")
    trunk = layers.Dense(5, "tanh", name="trunk")(small(inputs))
    return cls(inputs, [layers.Dense(2, name=n)(trunk) for n in "abc"])


def _assert_alike(found, plain):
    """As with keras.Model, with more logs."""
    weights, logs = found
    shared = {name: logs[name] for name in plain[1]}
    assert_same((weights, shared), plain, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_without_an_aggregation_it_is_plain_keras():
    """Losses of None and of several kinds, add_loss, weights, a short batch."""
    y = [normal(6, 2, seed=k) for k in range(3)]
    weights = [np.array([0.0, 1, 2, 0, 1, 3])] * 3
    found = []
    for mode in (kpg.ByTask("mean"), None):
        loss = ["mse", None, keras.losses.MeanAbsoluteError(reduction="sum")]
        how = {"metrics": [["mae"], None, ["mse"]]}
        model = _compiled(two_losses, loss, None, mode=mode, **how)
        how = {"batch_size": 4, "epochs": 2, "sample_weight": weights}
        trained(model, normal(6, 6, seed=3), y, **how)
        found.append((model.get_weights(), model.history.history))
    _assert_alike(*found)
    logs = found[0][1]
    assert {"task_weight_a", "task_weight_c", "task_cosine_a_c"} < set(logs)
    assert "task_weight_b" not in logs
    assert logs["task_weight_a"] == [1.0, 1.0]


def test_masks_in_a_dict_of_outputs():
    modes = kpg.ByTask("mean"), None
    _assert_alike(*(task_networks.trained("masked", mode) for mode in modes))


def test_names_of_several_losses_of_an_output():
    loss = {"a": ["mse", "mae"], "b": ["mse"]}
    model = _compiled(convolutional, loss, None, mode=kpg.ByTask("mean"))
    _, logs = _step(model, *data(model))
    names = {n.removeprefix("task_weight_") for n in logs if "_weight_" in n}
    assert names == {"a_mse", "a_mae", "b"}


def test_chosen_losses_are_tasks_and_the_others_are_added():
    """A group of losses is one task, add_loss another; one is in none."""
    tasks = {"both": ["a", "b"], "small": "add_loss/small"}
    mode = kpg.ByTask(task_networks.upgrad(), losses=tasks)
    model = _compiled(two_losses, ["mse", "mse", "mse"], None, mode=mode)
    x, y = normal(6, 6, seed=3), [3 * normal(6, 2, seed=k) for k in range(3)]
    mse = [_loss(MSE, k, 1.0, y=y) for k in range(3)]
    losses = [
        lambda out: mse[0](out) + mse[1](out),
        lambda out: tf.add_n(model.losses),
        mse[2],
    ]
    *parts, rest = task_gradients(model, losses, x)
    expected, _, _ = aggregated(parts, upgrad_of_two)
    update, logs = _step(model, x, y)
    for found, sums, other in zip(update, expected, rest, strict=True):
        other = 0.0 if other is None else other
        np.testing.assert_allclose(found, sums + other, rtol=1e-8, atol=1e-8)
    assert {"task_weight_both", "task_weight_small"} < set(logs)


def three_heads(cls=kpg.PerGradModel):
    inputs = keras.Input((6,))
    trunk = layers.Dense(5, "tanh", name="trunk")(inputs)
    return cls(inputs, {n: layers.Dense(2, name=n)(trunk) for n in "abc"})


def _step_of_three(mode, weights, y=None, **how):
    loss = dict.fromkeys("abc", "mse")
    model = _compiled(three_heads, loss, None, mode=mode, **how)
    y = {n: 3 * normal(6, 2, seed=k) for k, n in enumerate("abc")} | (y or {})
    return _step(model, normal(6, 6, seed=3), y, sample_weight=weights)[0]


#: How many times the step of the other two tasks is made where there are
#: three: IMTLG's weights add up to three, the shortest mean of all is zero.
TIMES = {"upgrad": 1, "cagrad": 1, "imtlg": 1.5, "mgda": 0}


@pytest.mark.parametrize("aggregation", TIMES)
def test_a_task_without_a_gradient_takes_no_part(aggregation):
    """As where all its labels are missing: weights of 0."""
    weights = {"a": np.ones(6), "b": np.ones(6), "c": np.zeros(6)}
    found = _step_of_three(kpg.ByTask(aggregation), weights)
    expected = _step_of_three(kpg.ByTask(aggregation, list("ab")), weights)
    for k, (own, other) in enumerate(zip(found, expected, strict=True)):
        other = other * (TIMES[aggregation] if k < 2 else 1)  # the trunk
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-8)
    assert any(np.any(part) for part in found)


def test_a_task_that_is_nan_is_as_in_keras():
    """The step is NaN where the task trains; a loss scale leaves it out."""
    mode, y = kpg.ByTask("cagrad"), {"c": np.full((6, 2), np.nan)}
    weights = dict.fromkeys("abc", np.ones(6))
    plain = _step_of_three(None, weights, y)
    for own, theirs in zip(_step_of_three(mode, weights, y), plain):
        assert np.array_equal(np.isnan(own), np.isnan(theirs))
    assert np.isnan(plain[0]).all()
    assert np.isfinite(plain[2]).all()
    inner = keras.optimizers.SGD(0.1)
    scaled = keras.optimizers.LossScaleOptimizer(inner)
    left_out = _step_of_three(mode, weights, y, optimizer=scaled)
    assert not any(np.any(part) for part in left_out)


def test_it_is_saved_with_the_model(tmp_path):
    tasks = {"one": ["a"], "two": ["b"]}
    mode = kpg.ByTask(kpg.aggregations.MGDA(), losses=tasks)
    model = _compiled(mlp, ["mse", "mae"], None, mode=mode)
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
def test_models_that_are_refused(make, loss, losses, *, match):
    model = _compiled(make, loss, None, mode=kpg.ByTask(losses=losses))
    x, y = data(mlp())
    with unchanged(model), pytest.raises(ValueError, match=match):
        model.train_on_batch(x, y)
    model.compile("sgd", loss)
    model.train_on_batch(x, y)
