"""Values of samples in `fit`, against a loop over single samples."""

import csv
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import SampleValues
from keras_pergrad.influence import projected_factors
from keras_pergrad.influence.projection import projections
from tests import oracle
from tests.influence.making import assert_near, gradient_of, rows_of
from tests.models.making import assert_equal, compiled, net, trained, unchanged
from tests.modes.big_batch import Batches

layers = keras.layers
RATE = 0.3


def _with_gate(x):
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(2, 1, activation="relu")(gate)
    gate = layers.Conv2D(4, 1, activation="hard_sigmoid")(gate)
    return layers.Concatenate()([layers.Multiply()([x, gate]), x])


def _dense():
    hidden = layers.Dense(5, "tanh", kernel_regularizer="l2")
    return (4,), hidden, layers.Dropout(0.0)


def _shared():
    """One kernel used twice, a norm between."""
    twice = layers.Dense(4, "tanh")
    return (4,), twice, layers.LayerNormalization(), twice


def _mobile():
    """What MobileNetV3 is made of: curved gates, behind each other."""
    return (
        (6, 6, 2),
        layers.Conv2D(4, 3, strides=2, use_bias=False),
        layers.BatchNormalization(trainable=False),
        layers.Activation("hard_silu"),
        layers.DepthwiseConv2D(3, padding="same"),
        layers.Activation("hard_silu"),
        _with_gate,
        layers.MaxPooling2D(2),
        layers.Flatten(),
    )


def _convolution():
    return (6, 2), layers.Conv1D(3, 3, activation="tanh"), layers.Flatten()


def _masked():
    """Ids, some of them padding; a loop over positions."""
    return (5,), layers.Embedding(7, 3, mask_zero=True), layers.LSTM(4)


NETS = _dense, _shared, _convolution, _masked, _mobile


def _model(make=_dense, mode="vectorized", cls=kpg.PerGradModel, **settings):
    keras.utils.set_random_seed(1)
    shape, *parts = make()
    dtype = "int32" if make is _masked else None
    model = net(*parts, shape=shape, dtype=dtype, cls=cls)
    return compiled(model, mode, rate=RATE, **settings)


def _data(model, n=11, seed=0):
    rng = np.random.default_rng(seed)
    shape = n, *model.input_shape[1:]
    x = rng.normal(size=shape)
    if model.inputs[0].dtype == "int32":
        x = rng.integers(0, 7, shape)
    return x, rng.normal(size=(n, 3)), rng.uniform(0.5, 2, size=n)


def _begun(model=None, count=4, **how):
    """Return a model, its data, and values of its first samples as targets."""
    model = model or _model()
    x, y, _ = _data(model)
    return model, x, y, SampleValues((x[:count], y[:count]), **how)


def _by_variable(model, row):
    variables = model.trainable_variables
    ends = np.cumsum([int(np.prod(v.shape)) for v in variables])
    parts = zip(np.split(row, ends[:-1]), variables, strict=True)
    return [np.reshape(part, v.shape) for part, v in parts]


def _validation_gradient(model, batch):
    x, y, *weights = batch
    return gradient_of(
        model, lambda: model._compile_loss(y, model(x), *weights)
    )


def _hessian_product(model, batch, direction, *, step=1e-4):
    """By fourth-order differences of the gradient."""
    begin, rows = model.get_weights(), []
    parts = _by_variable(model, direction)
    for k in (-2, -1, 1, 2):
        for v, part in zip(model.trainable_variables, parts):
            v.assign_add(k * step * part)
        rows.append(_validation_gradient(model, batch))
        model.set_weights(begin)
    low2, low, up, up2 = rows
    return (8 * (up - low) - (up2 - low2)) / (12 * step)


def _one_step(model, order=1, weighted=True, *, weigh=None, divisor=11):
    """Return what a fit of one step values, and the docstring's formula."""
    x, y, w = _data(model)
    w, validation = w if weighted else None, _data(model, 4, seed=9)
    rows = [rows_of([g]) for g in oracle.per_sample_gradients(model, x, y, w)]
    if weigh is not None:
        norms = np.stack([np.linalg.norm(g, axis=1) for g in rows], 1)
        rows = [g * f[:, None] for g, f in zip(rows, weigh(norms).T)]
    gradients = np.concatenate(rows, 1)
    direction = _validation_gradient(model, validation)
    if order == 2:
        mean = gradients.sum(0) / divisor
        product = _hessian_product(model, validation, mean)
        direction = direction - RATE / 2 * product
    values = SampleValues(validation, order=order)
    trained(model, x, y, batch_size=20, callbacks=[values], sample_weight=w)
    return values, RATE * gradients @ direction / divisor


def _assert_exact(values, expected, order=1):
    rtol = 1e-10 if order == 1 else 1e-7
    np.testing.assert_allclose(values.values, expected, rtol, rtol * 1e-2)


def _clipped(size):
    return kpg.Vectorized(kpg.ClippedMean(0.4, expected_batch_size=size))


def _clip(norms):
    """The factor of each sample's gradient, the same for all variables."""
    whole = np.linalg.norm(norms, axis=1, keepdims=True)
    return np.broadcast_to(np.minimum(1, 0.4 / whole), norms.shape)


BY_VARIABLE = kpg.ClippedMean(0.2, per="variable")


def _clip_by_variable(norms):
    return np.array(BY_VARIABLE.weights(tf.constant(norms)))


#: Name → settings of the model, of `_one_step`.
STEPS = {
    **{make.__name__: ({"make": make}, {}) for make in NETS},
    "eager": ({"run_eagerly": True}, {"weighted": False}),
    "xla": ({"jit_compile": True}, {"weighted": False}),
    # Of what is applied.
    "clipped": ({"mode": _clipped(None)}, {"weigh": _clip}),
    "clipped, of 16": ({"mode": _clipped(16)}, {"weigh": _clip, "divisor": 16}),
    "clipped by variable": (
        {"make": _shared, "mode": kpg.Vectorized(BY_VARIABLE)},
        {"weigh": _clip_by_variable},
    ),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("case", STEPS)
def test_a_step_agrees_with_the_oracle(float64, case, order):
    settings, how = STEPS[case]
    values, expected = _one_step(_model(**settings), order, **how)
    _assert_exact(values, expected, order)
    assert values.counts.tolist() == [1] * 11


@pytest.mark.quick
def test_values_of_one_weight(float64):
    """They add up to what the step lowers a quadratic loss by."""
    bare = layers.Dense(1, use_bias=False)
    model = net(bare, shape=(1,), units=None)
    model = compiled(model, "vectorized", rate=RATE, jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 1))
    x_val, y_val = rng.normal(size=(2, 3, 1))
    before = model.get_weights()[0][0, 0]
    values = SampleValues((x_val, y_val), order=2)
    trained(model, x, y, batch_size=5, callbacks=[values])
    slopes = 2 * (before * x - y) * x
    slope = np.mean(2 * (before * x_val - y_val) * x_val)
    curvature = np.mean(2 * x_val**2)
    direction = slope - RATE / 2 * curvature * slopes.mean()
    right = RATE / 5 * slopes[:, 0] * direction
    np.testing.assert_allclose(values.values, right, rtol=1e-10)
    after = model.get_weights()[0][0, 0]
    losses = [np.mean((w * x_val - y_val) ** 2) for w in (before, after)]
    np.testing.assert_allclose(right.sum(), losses[0] - losses[1], rtol=1e-10)


def test_float32_agrees_to_a_millionth():
    values, expected = _one_step(_model(_convolution))
    assert_near(values.values, expected, 1e-6)


class _Before(keras.callbacks.Callback):
    """Notes the weights before each step; crashes before step `at`."""

    def __init__(self, at=None):
        super().__init__()
        self.at, self.weights = at, []

    def on_train_batch_begin(self, batch, logs=None):
        self.weights.append(self.model.get_weights())
        if len(self.weights) == self.at:
            raise KeyboardInterrupt


class _Seen(kpg.modes.StepReader):
    """Notes the targets of each step, which give their rows away."""

    def __init__(self):
        self.targets = []

    def read(self, samples):
        return {"y": samples.y}

    def receive(self, values):
        self.targets.append(np.asarray(values["y"]))


@pytest.mark.parametrize("every", [1, 2])
def test_several_epochs_shuffled_with_a_ragged_last_batch(float64, every):
    """The gradient of the validation data is held for `every` steps."""
    model = _model()
    x, y, _ = _data(model)
    validation = _data(model, 4, seed=9)
    before, seen = _Before(), _Seen()
    values = SampleValues(validation, every=every)
    how = {"batch_size": 4, "epochs": 3, "shuffle": True}
    with model.read_steps(seen):
        trained(model, x, y, callbacks=[values, before], **how)
    assert [len(batch) for batch in seen.targets] == [4, 4, 3] * 3
    expected, order = np.zeros(len(x)), []
    for k, targets in enumerate(seen.targets):
        rows = [int(np.argmin(np.abs(y - t).sum(1))) for t in targets]
        order += rows
        model.set_weights(before.weights[k])
        own = oracle.per_sample_gradients(model, x[rows], y[rows])
        if k % every == 0:
            held = _validation_gradient(model, validation)
        expected[rows] += RATE * rows_of(own) @ held / len(rows)
    assert order[:11] != sorted(order[:11])  # it was shuffled
    _assert_exact(values, expected)
    assert values.counts.tolist() == [3] * 11


def _adam(rate):
    return {"optimizer": keras.optimizers.Adam(rate)}


def _scheduled():
    decay = keras.optimizers.schedules.PiecewiseConstantDecay(
        [0], [0.125, 0.25]
    )
    return _adam(decay)


def _scaled():
    sgd = keras.optimizers.SGD(RATE)
    return {"optimizer": keras.optimizers.LossScaleOptimizer(sgd)}


THREE = {"steps_per_execution": 3}
XLA = {"jit_compile": True}
BATCHES = {"batch_size": 4, "epochs": 2}
#: Settings of two models, the order and how they are trained.
ALIKE = {
    "three steps at once": (dict, lambda: THREE, 1, BATCHES),
    "three steps in XLA": (lambda: XLA, lambda: THREE | XLA, 1, BATCHES),
    "the rate of the step": (lambda: _adam(0.125), _scheduled, 1, {}),
    "a scaled loss": (dict, _scaled, 2, {}),
}


@pytest.mark.parametrize("name", ALIKE)
def test_values_are_the_same(float64, name):
    *both, order, how = ALIKE[name]
    found = []
    for settings in both:
        model, x, y, values = _begun(_model(**settings()), order=order)
        trained(model, x, y, callbacks=[values], **how)
        found.append(values.values)
        assert values.counts.tolist() == [how.get("epochs", 1)] * 11
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_training_is_the_same():
    models = []
    for watched in (False, True):
        keras.utils.set_random_seed(3)
        parts = layers.Dense(5, "relu"), layers.Dropout(0.5)
        model = net(*parts, shape=(4,), cls=kpg.PerGradModel)
        compiled(model, "vectorized", optimizer="adam")
        x, y, _ = _data(model)
        callbacks = [SampleValues((x, y), order=2)] if watched else []
        how = {"batch_size": 4, "epochs": 2, "shuffle": True, "seed": 4}
        models.append(trained(model, x, y, callbacks=callbacks, **how))
    assert_equal(*models)
    logs, watched = (model.history.history for model in models)
    assert logs == watched


@pytest.mark.parametrize("projects", [True, False])
def test_projections_or_the_exact_values(float64, projects, monkeypatch):
    """Kernels as small as these are only projected if that costs nothing."""
    if projects:
        monkeypatch.setattr(projected_factors, "WORTH", -float("inf"))
    model = _model(_convolution)
    x, y, _ = _data(model)
    validation = _data(model, 4, seed=9)[:2]
    gradients = oracle.per_sample_gradients(model, x, y)
    slope = _by_variable(model, _validation_gradient(model, validation))
    maps = projections([v.shape for v in model.trainable_variables], 40, 5)
    expected = np.zeros(len(x))
    for gradient, part, few in zip(gradients, slope, maps):
        project = few.of_gradients if projects else lambda g: rows_of([g])
        rows, (row,) = project(gradient), project(part[None])
        expected += np.asarray(rows) @ np.asarray(row)
    values = SampleValues(validation, projection=40, seed=5)
    trained(model, x, y, callbacks=[values])
    expected *= RATE / len(x)
    np.testing.assert_allclose(values.values, expected, rtol=1e-10)


@pytest.mark.parametrize("kind", ["dataset", "pydataset", "eager dataset"])
def test_data_sets_bring_their_numbers(float64, kind):
    names = [f"sample {i}" for i in range(11)]
    with_numbers = SampleValues.with_numbers
    found = []
    for by in ("arrays", kind):
        model = _model(run_eagerly=kind == "eager dataset")
        model, x, y, values = _begun(model, ids=names)
        data, more = (x, y), {"batch_size": 4}
        if by == "pydataset":
            numbered = with_numbers(x, np.arange(11)), y
            data, more = (Batches(numbered, [4, 4, 3]),), {}
        elif by != "arrays":
            rows = tf.data.Dataset.from_tensor_slices((x, y)).enumerate()
            rows = rows.map(lambda k, d: (with_numbers(d[0], k), d[1]))
            data, more = (rows.batch(4),), {}
        trained(model, *data, callbacks=[values], **more)
        found.append(values.values)
        assert values.top(1)[0][0] == names[int(np.argmax(values.values))]
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_a_resumed_fit_has_the_values_of_one_in_a_piece(float64, tmp_path):
    def fit(*callbacks):
        model, x, y, values = _begun()
        how = {"batch_size": 4, "epochs": 4}
        try:
            trained(model, x, y, callbacks=[*callbacks, values], **how)
        except KeyboardInterrupt:
            # Two steps of the third epoch are trained on, and lost.
            assert not model.step_options.readers
            trained(model, x, y)
            assert values.counts.sum() == 2 * 11 + 8
            return None
        return values

    backup = keras.callbacks.BackupAndRestore
    assert fit(backup(tmp_path), _Before(9)) is None
    whole, found = fit(), fit(backup(tmp_path))
    assert found.counts.tolist() == [4] * 11
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-12)


def test_values_are_saved_with_the_weights(tmp_path):
    model, x, y, first = _begun()
    trained(model, x, y, epochs=2, callbacks=[first])
    model.save_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "model.keras")
    other = _model()
    other.load_weights(tmp_path / "model.weights.h5")
    for loaded in (other, keras.saving.load_model(tmp_path / "model.keras")):
        loaded, x, y, values = _begun(loaded)
        how = {"callbacks": [values]}
        trained(loaded, x, y, epochs=3, initial_epoch=2, **how)
        assert values.counts.tolist() == [3] * 11
        assert np.all(values.values != first.values)
        # Another fit begins anew.
        trained(loaded, x, y, **how)
        assert values.counts.tolist() == [1] * 11
    with pytest.raises(ValueError, match="values of 11 samples"):
        trained(loaded, x[:5], y[:5], epochs=4, initial_epoch=3, **how)


def test_weights_without_values_stay_plain_files(tmp_path):
    plain = _model(mode=None, cls=keras.Model)
    model, x, y, values = _begun(count=11)
    model.save_weights(tmp_path / "plain.weights.h5")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "plain.weights.h5")
    plain.save_weights(tmp_path / "keras.weights.h5")
    model.load_weights(tmp_path / "keras.weights.h5")
    trained(model, x, y, callbacks=[values])
    model.save_weights(tmp_path / "valued.weights.h5")
    plain.load_weights(tmp_path / "valued.weights.h5")
    assert_equal(plain.get_weights(), model.get_weights())


def test_one_callback_in_two_models():
    first, x, y, values = _begun()
    second = _model(_shared)
    again, _, _, alone = _begun(_model(_shared))
    trained(first, x, y, callbacks=[values])
    before = values.values
    trained(second, x[:7], y[:7], callbacks=[values], shuffle=True)
    assert values.values.shape == (7,)
    trained(again, x[:7], y[:7], callbacks=[alone])
    np.testing.assert_allclose(values.values, alone.values, rtol=1e-4)
    assert len(before) == 11


def test_validation_split_and_further_callbacks():
    model, x, y, values = _begun(count=11)
    probe = kpg.callbacks.GradientVariance()
    callbacks = [probe, kpg.callbacks.DevicePlacement(deep=True), values]
    trained(model, x, y, validation_split=0.3, callbacks=callbacks)
    assert "val_loss" in model.history.history
    assert len(probe.readings) == 1
    assert values.counts.tolist() == [1] * 7 + [0] * 4
    assert np.all(values.values[7:] == 0)


def test_a_sample_that_is_not_finite_has_no_value():
    clipped = _model(mode=kpg.Vectorized(kpg.ClippedMean(1.0)))
    model, x, y, values = _begun(clipped, count=3)
    x[3] = np.nan
    trained(model, x, y, callbacks=[values])
    assert values.counts.tolist() == [1, 1, 1, 0] + [1] * 7
    assert values.values[3] == 0
    assert np.all(np.isfinite(values.values))


def test_what_is_made_of_values(tmp_path):
    names = [f"row {i}" for i in range(11)]
    model, x, y, values = _begun(ids=names)
    with pytest.raises(ValueError, match="once a `fit` has used it"):
        values.top()
    trained(model, x, y, callbacks=[values])
    order = np.argsort(-values.values)
    assert [i for i, _ in values.top(3)] == [names[k] for k in order[:3]]
    worst = [i for i, _ in values.top(2, helpful=False)]
    assert worst == [names[k] for k in order[:-3:-1]]
    assert str(worst[0]) in values.table(1)
    assert "harmful" in values.table(1)
    values.to_csv(tmp_path / "values.csv")
    with open(tmp_path / "values.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == names
    written = [float(row["value"]) for row in rows]
    np.testing.assert_array_equal(np.float32(written), values.values)
    assert {row["steps"] for row in rows} == {"1"}


def test_a_frame_without_pandas_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    values = SampleValues((np.ones((2, 3)), np.ones((2, 1))))
    with pytest.raises(ImportError, match=r"to_frame.*pip install pandas$"):
        values.to_frame()


def test_frame_and_plot():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("agg")
    model, x, y, values = _begun()
    trained(model, x, y, callbacks=[values])
    frame = values.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["id"].tolist() == list(range(11))
    texts = values.plot().get_legend().get_texts()
    helped = int((values.values > 0).sum())
    assert texts[0].get_text() == f"helped: {helped}"


def _stateful():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4, 2), batch_size=11)
    outputs = layers.Dense(3)(layers.LSTM(3, stateful=True)(inputs))
    return compiled(kpg.PerGradModel(inputs, outputs), "vectorized")


class Counter(layers.Layer):
    """Counts its calls, in a part of a variable."""

    def build(self, shape):
        del shape
        self.counts = self.add_weight((2,), "zeros", trainable=False)

    def call(self, x):
        self.count(self.counts.value)
        return x

    def count(self, variable):
        variable[1:].assign(variable[1:] + 1.0)


class FunctionCounter(Counter):
    """Counts in a function."""

    @tf.function
    def count(self, variable):
        variable.assign_add([1.0, 1.0])


class BranchCounter(Counter):
    """Counts in a branch."""

    def count(self, variable):
        tf.cond(
            variable[0] < 9.0,
            lambda: variable.assign_add([1.0, 1.0]),
            variable.value,
        )


class Draws(Counter):
    """Draws, which advances the state of a generator."""

    def build(self, shape):
        super().build(shape)
        self.generator = tf.random.Generator.from_seed(1)

    def count(self, variable):
        del variable
        self.generator.normal([2])


def _with(layer):
    return _model(lambda: ((4,), layer))


@kpg.aggregations.register_aggregation("halved_for_values")
class Halved(kpg.aggregations.Aggregation):
    def weights(self, norms):
        return 0.5 * tf.ones_like(norms)


def _delayed():
    return keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)


ALL = "all of them at once"
MEAN = "'mean' or a ClippedMean"
#: Name → the model, what the message says.
MODELS = {
    "batch": (lambda: _model(mode="batch"), ALL),
    "one by one": (lambda: _model(mode="per_sample"), ALL),
    "parts": (lambda: _model(mode=kpg.Accumulated(steps=2)), ALL),
    "UPGrad": (lambda: _model(mode=kpg.Vectorized("upgrad")), MEAN),
    "halved": (lambda: _model(mode=kpg.Vectorized(Halved())), MEAN),
    "later": (
        lambda: _model(optimizer=_delayed()),
        "gradient_accumulation_steps=2",
    ),
    "stateful": (_stateful, r"must leave it as it is|state"),
    "slice": (lambda: _with(Counter()), "ResourceStridedSliceAssign"),
    "function": (lambda: _with(FunctionCounter()), "PartitionedCall"),
    "branch": (lambda: _with(BranchCounter()), "type If"),
    "draws": (lambda: _with(Draws()), "RngReadAndSkip"),
    "plain": (
        lambda: _model(mode=None, cls=keras.Model),
        "expected a PerGradModel",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_without_values_are_refused(name):
    make, match = MODELS[name]
    model, x, y, values = _begun(make(), count=11)
    with unchanged(model), pytest.raises(ValueError, match=match):
        trained(model, x, y, batch_size=11, callbacks=[values])
    trained(model, x, y, batch_size=11)


def test_data_that_do_not_fit_are_refused():
    model = _model()
    x, y, _ = _data(model)
    data = (tf.data.Dataset.from_tensor_slices((x, y)).batch(4),)
    for given, match, *hows in (
        (data, "ids=len", {}),
        (data, "data without numbers", {"ids": 11}),
        ((x, y), "11, one a row of x", {"ids": 7}),
        ((x, y), "one SampleValues in a `fit`", {}, {}),
    ):
        callbacks = [SampleValues((x, y), **how) for how in hows]
        with unchanged(model), pytest.raises(ValueError, match=match):
            trained(model, *given, callbacks=callbacks)
    trained(model, x, y)


@pytest.mark.parametrize(
    "how", [{}, {"run_eagerly": True}, XLA, XLA | {"steps_per_execution": 2}]
)
def test_numbers_outside_of_the_ids_change_no_weight(how):
    model = _model(**{"jit_compile": False, **how})
    x, y, _ = _data(model)
    for numbers, ids in ((np.arange(11), 10), (np.arange(-1, 10), 11)):
        values = SampleValues((x, y), ids=ids)
        given = SampleValues.with_numbers(x, numbers)
        kind = tf.errors.InvalidArgumentError
        refused = pytest.raises(kind, match=r"numbers of samples from 0 to")
        with unchanged(model), refused:
            trained(model, given, y, callbacks=[values])
    given = SampleValues.with_numbers(x, np.arange(11))
    trained(model, given, y, batch_size=4, epochs=2, callbacks=[values])
    assert values.counts.tolist() == [2] * 11


def test_arguments_are_checked():
    x = np.ones((2, 4))
    for how, match in (
        ({"order": 3}, "`order` expected one of 1, 2"),
        ({"every": 0}, "`every` expected a positive"),
        ({"order": 2, "every": 2}, "expected every=1"),
        ({"projection": 0}, "`projection` expected a positive"),
        ({"validation_data": x}, "`validation_data` expected a batch"),
    ):
        with pytest.raises(ValueError, match=match):
            SampleValues(**{"validation_data": (x, x[:, :3]), **how})


@pytest.mark.parametrize("structure", ["dict", "list"])
def test_models_with_several_losses(float64, structure):
    rng = np.random.default_rng(0)
    x, u, v = (rng.normal(size=(6, k)) for k in (4, 1, 2))
    inputs = keras.Input((4,))
    hidden = layers.Dense(3, "tanh")(inputs)
    outputs = [
        layers.Dense(1, name="u")(hidden),
        layers.Dense(2, name="v")(hidden),
    ]
    y, loss = [u, v], ["mse", "mae"]
    if structure == "dict":
        outputs, y, loss = (dict(zip("uv", one)) for one in (outputs, y, loss))
    model = compiled(kpg.PerGradModel(inputs, outputs), "vectorized", loss)

    def gradient(rows):
        def value():
            first, second = tf.nest.flatten(model(x[rows]))
            squares = tf.reduce_mean(tf.square(first - u[rows]))
            return squares + tf.reduce_mean(tf.abs(second - v[rows]))

        return gradient_of(model, value)

    own = np.array([gradient([k]) for k in range(6)])
    expected = 0.1 / 6 * own @ gradient([0, 1, 2, 3])
    validation = x[:4], tf.nest.map_structure(lambda t: t[:4], y)
    values = SampleValues(validation)
    trained(model, x, y, batch_size=6, callbacks=[values])
    np.testing.assert_allclose(values.values, expected, 1e-10)
    # Keras's means of both losses are those of the training data alone.
    log = model.history.history
    total = log["u_loss"][0] + log["v_loss"][0]
    np.testing.assert_allclose(total, log["loss"][0], 1e-10)
