"""Values of samples in `fit`, against a loop over single samples."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import SampleValues
from keras_pergrad.factors import outer
from tests import oracle

layers = keras.layers
RATE = 0.3


def _dense():
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, "tanh", kernel_regularizer="l2")(inputs)
    return inputs, layers.Dropout(0.0)(layers.Dense(3)(hidden))


def _shared():
    """One kernel used twice, a norm between."""
    inputs = keras.Input((4,))
    twice = layers.Dense(4, "tanh")
    return inputs, layers.Dense(3)(
        twice(layers.LayerNormalization()(twice(inputs)))
    )


def _convolution():
    inputs = keras.Input((6, 2))
    hidden = layers.Conv1D(3, 3, activation="tanh")(inputs)
    return inputs, layers.Dense(3)(layers.Flatten()(hidden))


def _masked():
    """Ids, some of them padding; a loop over positions."""
    inputs = keras.Input((5,), dtype="int32")
    rows = layers.Embedding(7, 3, mask_zero=True)(inputs)
    return inputs, layers.Dense(3)(layers.LSTM(4)(rows))


def _mobile():
    """What MobileNetV3 is made of: curved gates, behind each other."""
    inputs = keras.Input((6, 6, 2))
    norm = layers.BatchNormalization(trainable=False)
    hidden = layers.Activation("hard_silu")(
        norm(layers.Conv2D(4, 3, strides=2, use_bias=False)(inputs))
    )
    hidden = layers.DepthwiseConv2D(3, padding="same")(hidden)
    hidden = layers.Activation("hard_silu")(hidden)
    gate = layers.GlobalAveragePooling2D(keepdims=True)(hidden)
    gate = layers.Conv2D(2, 1, activation="relu")(gate)
    gate = layers.Conv2D(4, 1, activation="hard_sigmoid")(gate)
    hidden = layers.Concatenate()([layers.Multiply()([hidden, gate]), hidden])
    hidden = layers.MaxPooling2D(2)(hidden)
    return inputs, layers.Dense(3)(layers.Flatten()(hidden))


NETS = {
    f.__name__: f for f in (_dense, _shared, _convolution, _masked, _mobile)
}


def _model(make=_dense, mode="vectorized", optimizer=None, **compiled):
    keras.utils.set_random_seed(1)
    model = kpg.PerGradModel(*make())
    optimizer = optimizer or keras.optimizers.SGD(RATE)
    model.compile(optimizer, "mse", gradient_mode=mode, **compiled)
    return model


def _data(model, n=11, seed=0):
    rng = np.random.default_rng(seed)
    shape = n, *model.input_shape[1:]
    x = rng.normal(size=shape)
    if model.inputs[0].dtype == "int32":
        x = rng.integers(0, 7, shape)
    return x, rng.normal(size=(n, 3)), rng.uniform(0.5, 2, size=n)


def _flat(gradients):
    return np.concatenate([np.reshape(g, (len(g), -1)) for g in gradients], 1)


def _validation_gradient(model, batch, training=False):
    x, y, *weights = batch
    with tf.GradientTape() as tape:
        loss = model._compile_loss(y, model(x, training=training), *weights)
    gradients = tape.gradient(loss, model.trainable_variables)
    return np.concatenate(
        [np.ravel(tf.convert_to_tensor(g)) for g in gradients]
    )


def _add(model, direction, step):
    at = 0
    for v in model.trainable_variables:
        size = int(np.prod(v.shape))
        part = np.reshape(direction[at : at + size], v.shape)
        v.assign_add(step * part)
        at += size


def _hessian_product(model, batch, direction, step=1e-4):
    """By fourth-order differences of the gradient."""
    rows = []
    for k in (-2, -1, 1, 2):
        _add(model, direction, k * step)
        rows.append(_validation_gradient(model, batch))
        _add(model, direction, -k * step)
    low2, low, up, up2 = rows
    return (8 * (up - low) - (up2 - low2)) / (12 * step)


def _step_values(model, batch, validation, order, clip=None, norm=None):
    """The values of one batch, by the formula of the docstring."""
    gradients = _flat(oracle.per_sample_gradients(model, *batch))
    n = len(gradients)
    if clip is not None:
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients = gradients * np.minimum(1, clip / norms)
    direction = _validation_gradient(model, validation)
    if order == 2:
        mean = gradients.sum(0) / (norm or n)
        product = _hessian_product(model, validation, mean)
        direction = direction - RATE / 2 * product
    return RATE * gradients @ direction / (norm or n)


def _tolerance(order):
    rtol = 1e-10 if order == 1 else 1e-7
    return {"rtol": rtol, "atol": rtol * 1e-2}


def _one_step(model, order=1, weighted=True, **how):
    x, y, w = _data(model)
    validation = _data(model, 4, seed=9)
    values = SampleValues(validation, order=order)
    clip = {k: how.pop(k) for k in ("clip", "norm") if k in how}
    weights = model.get_weights()
    expected = _step_values(
        model, (x, y, w if weighted else None), validation, order, **clip
    )
    model.set_weights(weights)
    given = {"sample_weight": w} if weighted else {}
    model.fit(
        x, y, batch_size=20, verbose=0, callbacks=[values], **given, **how
    )
    return values, expected


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_a_step_agrees_with_the_oracle(make, order):
    values, expected = _one_step(_model(make), order)
    np.testing.assert_allclose(values.values, expected, **_tolerance(order))
    assert values.counts.tolist() == [1] * 11


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("how", [{"run_eagerly": True}, {"jit_compile": True}])
@pytest.mark.parametrize("order", [1, 2])
def test_eager_and_xla(how, order):
    values, expected = _one_step(_model(**how), order, weighted=False)
    np.testing.assert_allclose(values.values, expected, **_tolerance(order))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("size", [None, 16])
def test_clipped_values_are_those_of_what_is_applied(order, size):
    mean = kpg.ClippedMean(0.4, expected_batch_size=size)
    model = _model(mode=kpg.Vectorized(mean))
    values, expected = _one_step(model, order, clip=0.4, norm=size)
    np.testing.assert_allclose(values.values, expected, **_tolerance(order))


@pytest.mark.usefixtures("float64")
def test_clipping_by_variable():
    mean = kpg.ClippedMean(0.2, per="variable")
    model = _model(_shared, kpg.Vectorized(mean))
    x, y, w = _data(model)
    validation = _data(model, 4, seed=9)
    gradients = oracle.per_sample_gradients(model, x, y, w)
    weights = mean.weights(
        tf.stack([np.linalg.norm(_flat([g]), axis=1) for g in gradients], 1)
    )
    clipped = _flat(
        [
            g * np.reshape(weights[:, k], [-1] + [1] * (g.ndim - 1))
            for k, g in enumerate(gradients)
        ]
    )
    expected = clipped @ _validation_gradient(model, validation) * RATE / len(x)
    values = SampleValues(validation)
    model.fit(x, y, sample_weight=w, verbose=0, callbacks=[values])
    np.testing.assert_allclose(values.values, expected, rtol=1e-10)


def test_float32_agrees_to_a_millionth():
    values, expected = _one_step(_model(_convolution))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(values.values, expected, atol=1e-6 * scale)


class _Replayed(keras.callbacks.Callback):
    """Notes the weights before each step, and the rows of its batch."""

    def __init__(self):
        super().__init__()
        self.weights, self.rows = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.weights.append(self.model.get_weights())


@pytest.mark.usefixtures("float64")
def test_several_epochs_shuffled_with_a_ragged_last_batch():
    model = _model()
    x, y, _ = _data(model)
    validation = _data(model, 4, seed=9)
    values, replayed = SampleValues(validation), _Replayed()
    # The target gives the row away: batches are known from their outputs.
    seen = []

    class Seen(kpg.modes.StepReader):
        def read(self, samples):
            return {"y": samples.y}

        def receive(self, values):
            seen.append(np.asarray(values["y"]))

    with model.read_steps(Seen()):
        model.fit(
            x,
            y,
            batch_size=4,
            epochs=3,
            verbose=0,
            callbacks=[values, replayed],
        )
    assert [len(batch) for batch in seen] == [4, 4, 3] * 3
    expected = np.zeros(len(x))
    orders = []
    for weights, batch in zip(replayed.weights, seen, strict=True):
        rows = [int(np.argmin(np.abs(y - t).sum(1))) for t in batch]
        orders += rows
        model.set_weights(weights)
        given = (x[rows], y[rows])
        expected[rows] += _step_values(model, given, validation, 1)
    assert orders[:11] != sorted(orders[:11])  # it was shuffled
    np.testing.assert_allclose(values.values, expected, **_tolerance(1))
    assert values.counts.tolist() == [3] * 11


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("how", [{}, {"jit_compile": True}])
def test_several_steps_per_execution(how):
    found = []
    for steps in (1, 3):
        model = _model(steps_per_execution=steps, **how)
        x, y, _ = _data(model)
        values = SampleValues((x[:4], y[:4]))
        given = {"batch_size": 4, "shuffle": False, "verbose": 0}
        model.fit(x, y, epochs=2, callbacks=[values], **given)
        found.append(values.values)
        assert values.counts.tolist() == [2] * 11
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_training_is_the_same():
    trained = []
    for watched in (False, True):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((4,))
        hidden = layers.Dropout(0.5)(layers.Dense(5, "relu")(inputs))
        model = kpg.PerGradModel(inputs, layers.Dense(3)(hidden))
        model.compile("adam", "mse", gradient_mode="vectorized")
        x, y, _ = _data(model)
        callbacks = [SampleValues((x, y), order=2)] if watched else []
        keras.utils.set_random_seed(4)
        history = model.fit(
            x, y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks
        )
        trained.append((model.get_weights(), history.history))
    (plain, logs), (same, watched) = trained
    assert logs == watched
    for a, b in zip(plain, same, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("float64")
def test_every_holds_the_validation_gradient():
    model = _model()
    x, y, _ = _data(model, 12)
    validation = (x[:4], y[:4])
    replayed, values = _Replayed(), SampleValues(validation, every=2)
    model.fit(
        x,
        y,
        batch_size=3,
        shuffle=False,
        verbose=0,
        callbacks=[values, replayed],
    )
    expected = []
    for k, weights in enumerate(replayed.weights):
        model.set_weights(weights)
        rows = slice(3 * k, 3 * k + 3)
        gradients = _flat(oracle.per_sample_gradients(model, x[rows], y[rows]))
        if k % 2 == 0:
            held = _validation_gradient(model, validation)
        expected += list(RATE * gradients @ held / 3)
    np.testing.assert_allclose(values.values, expected, rtol=1e-10)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("projects", [True, False])
def test_projections_or_the_exact_values(projects, monkeypatch):
    """Kernels as small as these are only projected if that costs nothing."""
    if projects:
        monkeypatch.setattr(outer, "WORTH", -float("inf"))
    model = _model(_convolution)
    x, y, _ = _data(model)
    validation = _data(model, 4, seed=9)[:2]
    gradients = oracle.per_sample_gradients(model, x, y)
    slope = _validation_gradient(model, validation)
    maps = kpg.factors.projections(
        [v.shape for v in model.trainable_variables], 40, 5
    )
    at, expected = 0, np.zeros(len(x))
    for gradient, few in zip(gradients, maps):
        size = int(np.prod(gradient.shape[1:]))
        part = np.reshape(slope[at : at + size], (1, *gradient.shape[1:]))
        at += size
        pair = gradient.reshape(len(x), -1), part.reshape(1, -1)
        if projects:
            pair = few.of_gradients(gradient), few.of_gradients(part)
        expected += np.matmul(np.asarray(pair[0]), np.asarray(pair[1])[0])
    values = SampleValues(validation, projection=40, seed=5)
    model.fit(x, y, verbose=0, callbacks=[values])
    np.testing.assert_allclose(
        values.values, RATE * expected / len(x), rtol=1e-10
    )


def _numbered(x, y, rows):
    return SampleValues.with_numbers(x, rows), y


class _Data(keras.utils.PyDataset):
    """Three batches of at most four samples, with their numbers."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 3

    def __getitem__(self, k):
        rows = np.arange(4 * k, min(4 * k + 4, len(self.x)))
        return _numbered(self.x[rows], self.y[rows], rows)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["dataset", "pydataset", "eager dataset"])
def test_data_sets_bring_their_numbers(kind):
    found = []
    for by in ("arrays", kind):
        model = _model(run_eagerly=kind == "eager dataset")
        x, y, _ = _data(model)
        names = [f"sample {i}" for i in range(len(x))]
        values = SampleValues((x[:4], y[:4]), ids=names)
        data, more = (x, y), {"batch_size": 4}
        if "dataset" in by:
            data = tf.data.Dataset.from_tensor_slices((x, y)).enumerate()
            data = data.map(lambda k, d: _numbered(*d, k)).batch(4)
            data, more = (data,), {}
        if by == "pydataset":
            data = (_Data(x, y),)
        model.fit(*data, shuffle=False, verbose=0, callbacks=[values], **more)
        found.append(values.values)
        assert values.top(1)[0][0] == names[int(np.argmax(values.values))]
    np.testing.assert_allclose(*found, rtol=1e-12)


class _Crash(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self.at, self.steps = at, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.steps += 1
        if self.steps == self.at:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("float64")
def test_a_resumed_fit_has_the_values_of_one_in_a_piece(tmp_path):
    whole, found = None, None
    given = {"batch_size": 4, "shuffle": False, "verbose": 0, "epochs": 4}
    for crashes in (False, True):
        model = _model()
        x, y, _ = _data(model)
        if not crashes:
            whole = SampleValues((x[:4], y[:4]))
            model.fit(x, y, callbacks=[whole], **given)
            continue
        # The second step of the third epoch is trained on, and lost.
        for at in (9, 99):
            model, found = _model(), SampleValues((x[:4], y[:4]))
            backup = keras.callbacks.BackupAndRestore(tmp_path)
            callbacks = [backup, found, _Crash(at)]
            if at == 9:
                with pytest.raises(KeyboardInterrupt):
                    model.fit(x, y, callbacks=callbacks, **given)
                assert found.counts.sum() == 2 * 11 + 8 - 4 * (at == 8)
            else:
                model.fit(x, y, callbacks=callbacks, **given)
    assert found.counts.tolist() == [4] * 11
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-12)


def test_values_are_saved_with_the_weights(tmp_path):
    model = _model()
    x, y, _ = _data(model)
    first = SampleValues((x[:4], y[:4]))
    model.fit(x, y, epochs=2, verbose=0, callbacks=[first])
    model.save_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "model.keras")
    other = _model()
    other.load_weights(tmp_path / "model.weights.h5")
    for loaded in (other, keras.saving.load_model(tmp_path / "model.keras")):
        values = SampleValues((x[:4], y[:4]))
        loaded.fit(
            x, y, epochs=3, initial_epoch=2, verbose=0, callbacks=[values]
        )
        assert values.counts.tolist() == [3] * 11
        assert np.all(values.values != first.values)
        # Another fit begins anew.
        loaded.fit(x, y, verbose=0, callbacks=[values])
        assert values.counts.tolist() == [1] * 11
    with pytest.raises(ValueError, match="values of 11 samples"):
        loaded.fit(x[:5], y[:5], epochs=4, initial_epoch=3, callbacks=[values])


def test_weights_without_values_stay_plain_files(tmp_path):
    model = _model()
    model.save_weights(tmp_path / "plain.weights.h5")
    net = keras.Model(*_dense())
    net.compile("sgd", "mse")
    net.optimizer.build(net.trainable_variables)
    net.load_weights(tmp_path / "plain.weights.h5")
    net.save_weights(tmp_path / "keras.weights.h5")
    model.load_weights(tmp_path / "keras.weights.h5")
    x, y, _ = _data(model)
    model.fit(x, y, verbose=0, callbacks=[SampleValues((x, y))])
    model.save_weights(tmp_path / "valued.weights.h5")
    net.load_weights(tmp_path / "valued.weights.h5")
    for a, b in zip(net.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_callback_in_two_models():
    first, second = _model(), _model(_shared)
    x, y, _ = _data(first)
    values = SampleValues((x[:4], y[:4]))
    first.fit(x, y, verbose=0, callbacks=[values])
    before = values.values
    second.fit(x[:7], y[:7], verbose=0, callbacks=[values])
    assert values.values.shape == (7,)
    alone = SampleValues((x[:4], y[:4]))
    again = _model(_shared)
    again.fit(x[:7], y[:7], shuffle=False, verbose=0, callbacks=[alone])
    np.testing.assert_allclose(values.values, alone.values, rtol=1e-4)
    assert len(before) == 11


def test_an_interrupted_fit_leaves_the_model_as_it_was():
    model = _model()
    x, y, _ = _data(model)
    values = SampleValues((x, y))
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[values, _Crash(2)])
    counts = values.counts
    assert counts.sum() == 4
    model.fit(x, y, verbose=0)
    assert values.counts.sum() == 4
    assert not model.gradient_mode.readers


def test_validation_split_and_further_callbacks(capsys):
    model = _model()
    x, y, _ = _data(model)
    values = SampleValues((x, y))
    probe = kpg.callbacks.GradientVariance()
    history = model.fit(
        x,
        y,
        validation_split=0.3,
        verbose=0,
        callbacks=[probe, kpg.callbacks.DevicePlacement(deep=True), values],
    )
    assert "val_loss" in history.history
    assert len(probe.readings) == 1
    assert values.counts.tolist() == [1] * 7 + [0] * 4
    assert np.all(values.values[7:] == 0)


def test_a_sample_that_is_not_finite_has_no_value():
    mode = kpg.Vectorized(kpg.ClippedMean(1.0))
    model = _model(mode=mode)
    x, y, _ = _data(model)
    x[3] = np.nan
    values = SampleValues((x[:3], y[:3]))
    model.fit(x, y, verbose=0, callbacks=[values])
    assert values.counts.tolist() == [1, 1, 1, 0] + [1] * 7
    assert values.values[3] == 0
    assert np.all(np.isfinite(values.values))


def test_the_rate_is_that_of_the_step():
    found = []
    for rate in (
        0.1,
        keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.1, 0.2]),
    ):
        model = _model(optimizer=keras.optimizers.Adam(rate))
        x, y, _ = _data(model)
        values = SampleValues((x, y))
        model.fit(x, y, verbose=0, callbacks=[values])
        found.append(values.values)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_scaled_loss():
    found = []
    for scaled in (False, True):
        optimizer = keras.optimizers.SGD(RATE)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model = _model(optimizer=optimizer)
        x, y, _ = _data(model)
        values = SampleValues((x, y), order=2)
        model.fit(x, y, verbose=0, callbacks=[values])
        found.append(values.values)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-7)


def test_what_is_made_of_values(tmp_path):
    model = _model()
    x, y, _ = _data(model)
    names = [f"row {i}" for i in range(11)]
    values = SampleValues((x[:4], y[:4]), ids=names)
    with pytest.raises(ValueError, match="once a `fit` has used it"):
        values.top()
    model.fit(x, y, verbose=0, callbacks=[values])
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


def test_frame_and_plot():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("agg")
    model = _model()
    x, y, _ = _data(model)
    values = SampleValues((x[:4], y[:4]))
    model.fit(x, y, verbose=0, callbacks=[values])
    frame = values.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["id"].tolist() == list(range(11))
    texts = values.plot().get_legend().get_texts()
    helped = int((values.values > 0).sum())
    assert texts[0].get_text() == f"helped: {helped}"


@pytest.mark.parametrize(
    ("mode", "match"),
    [
        ("batch", "all of them at once"),
        ("per_sample", "all of them at once"),
        (kpg.Accumulated(steps=2), "all of them at once"),
    ],
)
def test_other_modes_are_refused(mode, match):
    model = _model(mode=mode)
    x, y, _ = _data(model)
    weights = model.get_weights()
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, verbose=0, callbacks=[SampleValues((x, y))])
    for a, b in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_gramian_aggregation_is_refused():
    model = _model(mode=kpg.Vectorized(kpg.aggregations.UPGrad()))
    x, y, _ = _data(model)
    with pytest.raises(ValueError, match="'mean' or a ClippedMean"):
        model.fit(x, y, verbose=0, callbacks=[SampleValues((x, y))])


def test_a_layer_with_a_state_in_inference_is_refused():
    inputs = keras.Input((4, 2), batch_size=8)
    hidden = layers.LSTM(3, stateful=True)(inputs)
    model = _model(lambda: (inputs, layers.Dense(3)(hidden)))
    x, y = np.ones((8, 4, 2)), np.ones((8, 3))
    with pytest.raises(ValueError, match=r"must leave it as it is|state"):
        model.fit(x, y, batch_size=8, callbacks=[SampleValues((x, y))])


@kpg.aggregations.register_aggregation("halved_for_values")
class Halved(kpg.aggregations.Aggregation):
    def weights(self, norms):
        return 0.5 * tf.ones_like(norms)


@pytest.mark.parametrize(
    ("compiled", "match"),
    [
        ({"mode": kpg.Vectorized(Halved())}, "'mean' or a ClippedMean"),
        (
            {
                "optimizer": keras.optimizers.SGD(
                    RATE, gradient_accumulation_steps=2
                )
            },
            "gradient_accumulation_steps=2",
        ),
    ],
)
def test_updates_without_values_are_refused(compiled, match):
    model = _model(**compiled)
    x, y, _ = _data(model)
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, verbose=0, callbacks=[SampleValues((x, y))])
    model.fit(x, y, verbose=0)


def test_data_that_do_not_fit_are_refused():
    model = _model()
    x, y, _ = _data(model)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    weights = model.get_weights()

    def fit(*given, **how):
        values = SampleValues((x, y), **how)
        model.fit(*given, shuffle=False, verbose=0, callbacks=[values])

    with pytest.raises(ValueError, match="ids=len"):
        fit(data)
    with pytest.raises(ValueError, match="data without numbers"):
        fit(data, ids=11)
    with pytest.raises(ValueError, match="11, one a row of x"):
        fit(x, y, ids=7)
    both = [SampleValues((x, y)), SampleValues((x, y))]
    with pytest.raises(ValueError, match="one SampleValues in a `fit`"):
        model.fit(x, y, verbose=0, callbacks=both)
    for a, b in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    model.fit(x, y, verbose=0)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"run_eagerly": True},
        {"jit_compile": True},
        {"jit_compile": True, "steps_per_execution": 2},
    ],
)
def test_numbers_outside_of_the_ids_change_no_weight(how):
    model = _model(**{"jit_compile": False, **how})
    x, y, _ = _data(model)
    weights = model.get_weights()
    for numbers in (np.arange(11), np.arange(-1, 10)):
        values = SampleValues((x, y), ids=len(x) - (numbers[0] == 0))
        given = SampleValues.with_numbers(x, numbers)
        kind = tf.errors.InvalidArgumentError
        with pytest.raises(kind, match=r"numbers of samples from 0 to"):
            model.fit(given, y, verbose=0, callbacks=[values])
        for a, b in zip(weights, model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    values = SampleValues((x, y), ids=len(x))
    given = SampleValues.with_numbers(x, np.arange(11))
    model.fit(given, y, batch_size=4, epochs=2, verbose=0, callbacks=[values])
    assert values.counts.tolist() == [2] * 11


def test_a_plain_keras_model_is_refused():
    net = keras.Model(*_dense())
    net.compile("sgd", "mse")
    x, y = np.ones((4, 4)), np.ones((4, 3))
    with pytest.raises(ValueError, match="expected a PerGradModel"):
        net.fit(x, y, verbose=0, callbacks=[SampleValues((x, y))])


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"order": 3}, "`order` must be 1 or 2"),
        ({"every": 0}, "`every` must be a positive"),
        ({"order": 2, "every": 2}, "expected every=1"),
        ({"projection": 0}, "`projection` must be a positive"),
    ],
)
def test_arguments_out_of_range(how, match):
    with pytest.raises(ValueError, match=match):
        SampleValues((np.ones((2, 4)), np.ones((2, 3))), **how)


def test_validation_data_must_be_a_batch():
    with pytest.raises(ValueError, match="`validation_data` expected a batch"):
        SampleValues(np.ones((2, 4)))


@pytest.mark.parametrize("structure", ["dict", "list"])
def test_models_with_several_losses(float64, structure):
    rng = np.random.default_rng(0)
    x, u, v = (rng.normal(size=(6, k)) for k in (4, 1, 2))
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(3, "tanh")(inputs)
    u_out = keras.layers.Dense(1, name="u")(hidden)
    v_out = keras.layers.Dense(2, name="v")(hidden)
    outputs, y, loss = [u_out, v_out], [u, v], ["mse", "mae"]
    if structure == "dict":
        outputs, y, loss = (dict(zip("uv", one)) for one in (outputs, y, loss))
    model = kpg.PerGradModel(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), loss, gradient_mode="vectorized")

    def gradient(rows):
        with tf.GradientTape() as tape:
            first, second = tf.nest.flatten(model(x[rows]))
            value = tf.reduce_mean(tf.square(first - u[rows]))
            value += tf.reduce_mean(tf.abs(second - v[rows]))
        values = [w.value for w in model.trainable_variables]
        return np.concatenate(
            [np.ravel(g) for g in tape.gradient(value, values)]
        )

    own = np.array([gradient([k]) for k in range(6)])
    expected = 0.1 / 6 * own @ gradient([0, 1, 2, 3])
    validation = x[:4], tf.nest.map_structure(lambda t: t[:4], y)
    values = SampleValues(validation)
    log = model.fit(x, y, batch_size=6, verbose=0, callbacks=[values]).history
    np.testing.assert_allclose(values.values, expected, 1e-10)
    # Keras's means of both losses are those of the training data alone.
    total = log["u_loss"][0] + log["v_loss"][0]
    np.testing.assert_allclose(total, log["loss"][0], 1e-10)
