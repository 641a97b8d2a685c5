"""Making, saving and refusing models."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle, zoo

layers = keras.layers


def _data(n=6):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 4)).astype("float32")
    return x, rng.normal(size=(n, 3)).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Net(kpg.PerGradModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def _functional():
    inputs = keras.Input((4,))
    return kpg.PerGradModel(inputs, layers.Dense(3)(inputs))


def _wrapped():
    return kpg.PerGradModel.from_model(Net())


def _from_sequential():
    return kpg.PerGradModel.from_model(
        keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    )


@pytest.mark.parametrize("make", [_functional, Net, _wrapped, _from_sequential])
def test_saving_keeps_the_mode_and_its_settings(make, tmp_path):
    model = make()
    model.compile(
        keras.optimizers.Adam(0.1),
        "mse",
        metrics=["mae"],
        gradient_mode=kpg.Vectorized(kpg.ClippedMean(0.7, seed=2)),
    )
    x, y = _data()
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(again, kpg.PerGradModel)
    assert again.gradient_mode.get_config() == model.gradient_mode.get_config()
    assert again.gradient_mode.aggregation.clip_norm == 0.7
    np.testing.assert_allclose(
        again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6
    )
    for m in (model, again):
        m.fit(x, y, verbose=0, shuffle=False)
    for a, b in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_saving_does_not_ask_for_compile_by_hand(tmp_path):
    model = _functional()
    model.compile("sgd", "mse", gradient_mode="per_sample")
    model.fit(*_data(), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.gradient_mode) is kpg.PerSample


def test_from_model_shares_weights():
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model = kpg.PerGradModel.from_model(plain)
    model.compile("sgd", "mse", gradient_mode="vectorized")
    before = plain.get_weights()[0]
    model.fit(*_data(), verbose=0)
    assert not np.array_equal(before, plain.get_weights()[0])
    np.testing.assert_array_equal(
        plain.get_weights()[0], model.get_weights()[0]
    )


def test_from_model_takes_a_sequential_that_is_not_built():
    model = kpg.PerGradModel.from_model(
        keras.Sequential([layers.Dense(5), layers.Dense(3)])
    )
    model.compile("sgd", "mse", gradient_mode="vectorized")
    model.fit(*_data(), verbose=0)
    assert len(model.trainable_variables) == 4


def test_from_model_refuses_other_things():
    with pytest.raises(TypeError, match=r"must be a keras\.Model"):
        kpg.PerGradModel.from_model(layers.Dense(3))


@pytest.mark.parametrize(
    "mode",
    [
        "vectorized",
        kpg.Vectorized(),
        {"class_name": "vectorized", "config": {"aggregation": "mean"}},
        keras.saving.serialize_keras_object(kpg.Vectorized()),
    ],
)
def test_mode_identifiers(mode):
    model = _functional()
    model.compile("sgd", "mse", gradient_mode=mode)
    assert type(model.gradient_mode) is kpg.Vectorized
    assert type(model.gradient_mode.aggregation) is kpg.aggregations.Mean


def test_unknown_mode_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"'batch', .*'per_sample', .*'vectorized'"
    ):
        _functional().compile("sgd", "mse", gradient_mode="vectorised")
    with pytest.raises(ValueError, match="Unknown aggregation: 'median'"):
        kpg.Vectorized("median")
    with pytest.raises(ValueError, match="cannot be made from"):
        kpg.Vectorized("clipped_mean")
    with pytest.raises(TypeError, match=r"write Vectorized\(\.\.\.\)"):
        _functional().compile("sgd", "mse", gradient_mode=kpg.Vectorized)
    with pytest.raises(TypeError, match="The gradient mode is given as"):
        _functional().compile("sgd", "mse", gradient_mode=3)


def test_users_register_modes_and_aggregations():
    @kpg.aggregations.register_aggregation("test_normalized")
    class Normalized(kpg.aggregations.Aggregation):
        def weights(self, norms):
            return 1 / norms

    @kpg.modes.register_gradient_mode("test_sign")
    class Sign(kpg.Vectorized):
        def step(self, model, x, y, sample_weight):
            step = super().step(model, x, y, sample_weight)
            step.gradients = [tf.sign(g) for g in step.gradients]
            return step

    @kpg.modes.register_gradient_mode("test_doubled")
    class Doubled(kpg.Vectorized):
        def step(self, model, x, y, sample_weight):
            step = super().step(model, x, y, sample_weight)
            step.gradients = [2 * g for g in step.gradients]
            return step

    def moved(mode, **arguments):
        keras.utils.set_random_seed(1)
        model = _functional()
        sgd = keras.optimizers.SGD(0.5)
        model.compile(sgd, "mse", gradient_mode=mode, **arguments)
        before = model.get_weights()[1]
        model.train_on_batch(*_data())
        return model.get_weights()[1] - before

    for run_eagerly in (False, True):
        arguments = {"run_eagerly": run_eagerly, "jit_compile": False}
        twice = moved("test_doubled", **arguments)
        once = moved("vectorized", **arguments)
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)
    model = _functional()
    model.compile("sgd", "mse")
    batch = [tf.constant(part) for part in _data()]
    direct = [
        mode.step(model, *batch, None).gradients[0]
        for mode in (kpg.Vectorized(), Doubled())
    ]
    np.testing.assert_allclose(2 * direct[0], direct[1], rtol=1e-6)
    for inner in ("test_doubled", Doubled()):
        with pytest.raises(ValueError, match="which Doubled has from Vect"):
            kpg.Accumulated(inner=inner)
    model = _functional()
    mode = {
        "class_name": "test_sign",
        "config": {"aggregation": "test_normalized"},
    }
    model.compile(keras.optimizers.SGD(0.5), "mse", gradient_mode=mode)
    before = model.get_weights()[1]
    model.fit(*_data(), verbose=0)
    steps = np.abs(model.get_weights()[1] - before)
    np.testing.assert_allclose(steps, 0.5, rtol=1e-6)
    with pytest.raises(ValueError, match="'test_sign' is taken by Sign"):
        kpg.modes.register_gradient_mode("test_sign")(kpg.PerSample)
    with pytest.raises(ValueError, match="taken by ClippedMean"):
        kpg.aggregations.register_aggregation("clipped_mean")(
            type("ClippedMean", (kpg.aggregations.Aggregation,), {})
        )
    with pytest.raises(TypeError, match="must be a subclass of"):
        kpg.aggregations.register_aggregation("x")(keras.layers.Dense)


def test_per_sample_arguments():
    with pytest.raises(ValueError, match="`updates` must be one of"):
        kpg.PerSample(updates="epoch")
    with pytest.raises(ValueError, match="`parallel_iterations` must be"):
        kpg.PerSample(parallel_iterations=0)


@pytest.mark.parametrize("mode", ["per_sample", "vectorized"])
def test_refusals_leave_the_weights_alone(mode):
    x, y = _data()
    inputs = keras.Input((4,))

    def refused(outputs, match, loss="mse", error=ValueError):
        model = kpg.PerGradModel(inputs, outputs)
        model.compile("sgd", loss, gradient_mode=mode)
        before = model.get_weights()
        with pytest.raises(error, match=match):
            model.fit(x, y, verbose=0)
        for a, b in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)

    dense = layers.Dense(3)(inputs)
    normalized = layers.BatchNormalization(center=False, scale=False)(dense)
    refused(normalized, "depend on the whole batch while training")
    inner = keras.Sequential([layers.BatchNormalization()])
    refused(inner(dense), r"\(BatchNormalization\) makes every")
    refused(
        dense,
        "The loss must be one number",
        loss=keras.losses.MeanSquaredError(reduction=None),
    )


def test_frozen_batch_normalization_is_served():
    inputs = keras.Input((4,))
    normalization = layers.BatchNormalization()
    outputs = normalization(layers.Dense(3)(inputs))
    normalization.trainable = False
    model = kpg.PerGradModel(inputs, outputs)
    model.compile("sgd", "mse", gradient_mode="vectorized")
    x, y = _data()
    found = kpg.per_sample_gradients(model, x, y)
    oracle.check(found, model, x, y, training=True)
    model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(normalization.moving_mean, np.zeros(3))


def test_models_without_trainable_variables():
    model = _functional()
    model.trainable = False
    with pytest.raises(ValueError, match="no trainable variables"):
        model.compile("sgd", "mse", gradient_mode="vectorized")
    model = Net(trainable=False)
    model.compile("sgd", "mse", gradient_mode="vectorized")
    with pytest.raises(ValueError, match="no trainable variables"):
        model.fit(*_data(), verbose=0)


def test_lengths_must_agree():
    model = _functional()
    model.compile("sgd", "mse", gradient_mode="vectorized")
    x, y = _data()
    before = model.get_weights()[0]
    with pytest.raises(ValueError, match="x with 6, y with 1"):
        model.train_on_batch(x, y[:1])
    np.testing.assert_array_equal(before, model.get_weights()[0])
    two = [keras.Input((4,)), keras.Input((2,))]
    both = layers.Concatenate()([layers.Dense(2)(part) for part in two])
    model = kpg.PerGradModel(two, layers.Dense(1)(both))
    model.compile("sgd", "mse", gradient_mode="vectorized")
    with pytest.raises(ValueError, match="x with 6, x with 5, y with 6"):
        model.train_on_batch([np.ones((6, 4)), np.ones((5, 2))], np.ones(6))


class OwnPenalty(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        self.add_loss(keras.ops.sum(self.scale**2))
        return x * self.scale


class Raw(layers.Layer):
    """Draws without keras.random, so that nothing can be repeated."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        return x * self.scale + tf.random.normal(tf.shape(x))


class Folded(layers.Layer):
    """Moves the batch off the first axis, and adds a loss there."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1, activity_regularizer="l2")

    def call(self, x):
        y = self.dense(keras.ops.reshape(x, (-1, 1)))
        return keras.ops.reshape(y, (-1, 4))


@pytest.mark.parametrize("eager", [False, True])
def test_draws_without_keras_random_are_for_one_pass(eager):
    inputs = keras.Input((4,))
    outputs = layers.Dense(3)(Raw()(layers.Dense(4)(inputs)))
    model = kpg.PerGradModel(inputs, outputs)
    model.compile("sgd", "mse", run_eagerly=eager, gradient_mode="vectorized")
    before = model.get_weights()
    model.fit(*_data(), verbose=0)
    trained = model.get_weights()
    assert all((a != b).any() for a, b in zip(before, trained))
    model.compile("sgd", "mse", run_eagerly=eager, gradient_mode="per_sample")
    with pytest.raises(ValueError, match=r"'raw'.* draws numbers by the op"):
        model.fit(*_data(), verbose=0)
    for a, b in zip(trained, model.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (zoo.Centre, r"'centre'.* mixes the samples of a batch in the op Sub"),
        (OwnPenalty, "depends on 'own_penalty.* samples are no longer apart"),
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_layers_that_cannot_be_handled_are_refused(layer, match, eager):
    inputs = keras.Input((4,))
    outputs = layers.Dense(3)(layer()(layers.Dense(4)(inputs)))
    model = kpg.PerGradModel(inputs, outputs)
    model.compile("sgd", "mse", run_eagerly=eager, gradient_mode="vectorized")
    before = model.get_weights()
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=match
    ):
        model.fit(*_data(), verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("float64")
def test_a_layer_that_folds_samples_into_one_axis_is_exact():
    inputs = keras.Input((4,))
    outputs = layers.Dense(3)(Folded()(layers.Dense(4)(inputs)))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    x, y = (a.astype("float64") for a in _data())
    found = kpg.per_sample_gradients(model, x, y)
    looped = kpg.per_sample_gradients(model, x, y, method="per_sample")
    oracle.assert_agree(found, looped)


def test_layers_are_as_before_when_a_call_raises():
    class Failing(layers.Layer):
        def call(self, x):
            raise RuntimeError("on purpose")

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((4,))
    dense = layers.Dense(3, "relu")
    model = kpg.PerGradModel(inputs, Failing()(dense(inputs)))
    model.compile("sgd", "mse", gradient_mode="vectorized", run_eagerly=True)
    draw = keras.src.backend.random.normal
    with pytest.raises(RuntimeError, match="on purpose"):
        model.fit(*_data(), verbose=0)
    assert "call" not in vars(dense)
    assert dense.activation is keras.activations.relu
    assert keras.src.backend.random.normal is draw


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_other_backends_are_refused_with_the_way_out(backend):
    code = f"""
import sys, types
keras = types.ModuleType("keras")
keras.backend = types.SimpleNamespace(backend=lambda: {backend!r})
sys.modules["keras"] = keras
import keras_pergrad
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"Keras runs on {backend!r}" in done.stderr
    assert "KERAS_BACKEND=tensorflow" in done.stderr


class Rematerialised(layers.Layer):
    """Calls a sublayer where no outer tape sees it."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return tf.recompute_grad(self.dense)(x)


class RematerialisedByKeras(Rematerialised):
    def call(self, x):
        return keras.remat(self.dense)(x)


class Looped(Rematerialised):
    def call(self, x):
        return tf.while_loop(
            lambda i, _: i < 2, lambda i, y: (i + 1, self.dense(y)), (0, x)
        )[1]


class Unused(Rematerialised):
    def call(self, x):
        return x


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
@pytest.mark.parametrize(
    "layer",
    [
        Rematerialised,
        pytest.param(
            RematerialisedByKeras,
            marks=pytest.mark.skipif(
                not hasattr(keras, "remat"), reason="this Keras has no remat"
            ),
        ),
        Looped,
        Unused,
    ],
)
def test_calls_out_of_sight_are_exact(layer, method):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(3)(layer()(inputs)))
    model.compile("sgd", "mse", jit_compile=False)
    x, y = (a.astype("float64") for a in _data())
    found = kpg.per_sample_gradients(model, x, y, method=method)
    oracle.check(found, model, x, y)


def test_weights_that_are_not_used_get_no_gradient_as_in_keras():
    inputs = keras.Input((4,))
    layer = Unused()
    model = kpg.PerGradModel(inputs, layers.Dense(3)(layer(inputs)))
    model.compile("sgd", "mse", gradient_mode="vectorized")
    before = layer.get_weights()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        model.fit(*_data(), verbose=0)
    for a, b in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


_BESIDE = {
    "vectorized": "'decayed.*kernel' .* the samples are no longer apart",
    "per_sample": "outside the forward pass|samples are no longer apart",
}


def test_a_loss_that_reads_weights_is_refused():
    class Decayed(Net):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss + keras.ops.sum(self.dense.kernel**2)

    for mode in ("vectorized", "per_sample"):
        model = Decayed()
        model.compile("sgd", "mse", gradient_mode=mode)
        with pytest.raises(ValueError, match=_BESIDE[mode]):
            model.fit(*_data(), verbose=0)


def test_an_activation_with_weights_is_exact():
    inputs = keras.Input((4,))
    outputs = layers.Dense(3, activation=layers.PReLU())(inputs)
    model = keras.Model(inputs, layers.Dense(2)(outputs))
    model.compile("sgd", "mse")
    x, y = _data()
    found = kpg.per_sample_gradients(model, x, y[:, :2])
    oracle.check(found, model, x, y[:, :2])


def test_an_aggregation_for_a_mode_is_explained():
    said = (
        r"write Vectorized\(aggregation=ClippedMean\(clip_norm=1.0, "
        r"noise_multiplier=0.5\)\)"
    )
    model = kpg.PerGradModel()
    with pytest.raises(TypeError, match=said):
        model.compile(
            "sgd", gradient_mode=kpg.ClippedMean(1.0, noise_multiplier=0.5)
        )


def test_modes_and_aggregations_show_their_arguments():
    mode = kpg.Accumulated(steps=2, inner=kpg.PerSample(kpg.ClippedMean(2.0)))
    assert repr(mode) == (
        "Accumulated(steps=2, microbatch_size=None, "
        "inner=PerSample(aggregation=ClippedMean(clip_norm=2.0)))"
    )
    assert repr(kpg.aggregations.Mean()) == "Mean()"


def test_the_package_shows_public_names_only():
    assert set(dir(kpg)) == {*kpg.__all__, "__version__"}


def test_loss_scaling_in_double_precision():
    found = []
    floatx = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        for mode in ("batch", "vectorized", "per_sample"):
            keras.utils.set_random_seed(1)
            inputs = keras.Input((5,))
            model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(inputs))
            optimizer = keras.optimizers.SGD(0.1)
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
            model.compile(optimizer, "mse", gradient_mode=mode)
            model.fit(np.ones((4, 5)), np.ones((4, 3)), verbose=0)
            found.append(model.get_weights())
    finally:
        keras.config.set_floatx(floatx)
    for ours in found[1:]:
        for a, b in zip(ours, found[0]):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("name", ["clipped_fraction", "gradient_norm"])
def test_a_metric_with_the_name_of_a_logged_figure_is_refused(name):
    def make(name, **more):
        inputs = keras.Input((4,))
        model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
        metric = keras.metrics.MeanAbsoluteError(name=name)
        model.compile("sgd", "mse", metrics=[metric], **more)
        return model

    x, y = np.eye(4), np.ones((4, 1))
    mode = kpg.Vectorized(kpg.ClippedMean(0.1), statistics=True)
    model = make(name, gradient_mode=mode)
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"my_{name}"):
        model.fit(x, y, verbose=0)
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)
    assert name in make(name).fit(x, y, verbose=0).history
    history = make("other", gradient_mode=mode).fit(x, y, verbose=0).history
    assert {"other", name} <= set(history)
    watch = [kpg.callbacks.DataStall()]
    with pytest.raises(ValueError, match="DataStall logs"):
        make("step_ms").fit(x, y, verbose=0, callbacks=watch)


def test_a_loss_that_depends_on_no_weight_is_refused():
    inputs = keras.Input((4,))
    model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", lambda y, p: y**2, gradient_mode="vectorized")
    with pytest.raises(ValueError, match="does not depend on any"):
        model.fit(np.eye(4), np.ones((4, 1)), verbose=0)


def test_lists_of_numbers_are_told_from_arrays():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"numpy\.asarray\(x\)"):
        kpg.per_sample_norms(model, np.eye(4).tolist(), np.ones((4, 1)))
