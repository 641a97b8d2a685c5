"""Making, saving and refusing models."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle, zoo
from tests.models.making import assert_equal, compiled, net, normal, trained

layers = keras.layers
X, Y = normal(6, 4), normal(6, 3, seed=1)


@keras.saving.register_keras_serializable("tests")
class Net(kpg.PerGradModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def _net(*parts, cls=kpg.PerGradModel, **settings):
    return net(*parts, shape=(4,), cls=cls, **settings)


def _sequential():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3)])


def _wrapped():
    return kpg.PerGradModel.from_model(Net())


def _from_sequential():
    return kpg.PerGradModel.from_model(_sequential())


CLIPPED = kpg.Vectorized(kpg.ClippedMean(0.7, seed=2))


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (_net, CLIPPED),
        (Net, CLIPPED),
        (_wrapped, CLIPPED),
        (_from_sequential, CLIPPED),
        (_net, "per_sample"),
    ],
)
def test_saving_keeps_the_mode_and_its_settings(make, mode, tmp_path):
    adam = keras.optimizers.Adam(0.1)
    model = compiled(make(), mode, optimizer=adam, metrics=["mae"])
    trained(model, X, Y)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(again, kpg.PerGradModel)
    assert type(again.gradient_mode) is type(kpg.modes.get(mode))
    assert again.gradient_mode.get_config() == model.gradient_mode.get_config()
    if mode is CLIPPED:
        assert again.gradient_mode.aggregation.clip_norm == 0.7
    np.testing.assert_allclose(
        again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6
    )
    for m in (model, again):
        trained(m, X, Y)
    assert_equal(again.get_weights(), model.get_weights(), rtol=1e-5, atol=1e-6)


def test_from_model_shares_weights():
    plain = _sequential()
    model = compiled(plain, "vectorized")
    before = plain.get_weights()[0]
    trained(model, X, Y)
    assert not np.array_equal(before, plain.get_weights()[0])
    assert_equal(plain.get_weights(), model.get_weights())


def test_from_model_takes_a_sequential_that_is_not_built():
    plain = keras.Sequential([layers.Dense(5), layers.Dense(3)])
    model = trained(compiled(plain, "vectorized"), X, Y)
    assert len(model.trainable_variables) == 4


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
    model = compiled(_net(), mode)
    assert type(model.gradient_mode) is kpg.Vectorized
    assert type(model.gradient_mode.aggregation) is kpg.aggregations.Mean


NOISY = kpg.ClippedMean(1.0, noise_multiplier=0.5)


WRONG_TYPES = {
    r"write Vectorized\(\.\.\.\)": lambda: compiled(_net(), kpg.Vectorized),
    "The gradient mode is given as": lambda: compiled(_net(), 3),
    r"write Vectorized\(aggregation=ClippedMean\(clip_norm=1.0, "
    r"noise_multiplier=0.5\)\)": lambda: kpg.PerGradModel().compile(
        "sgd", gradient_mode=NOISY
    ),
    r"must be a keras\.Model": lambda: kpg.PerGradModel.from_model(
        layers.Dense(3)
    ),
}
WRONG_VALUES = {
    r"'batch', .*'per_sample', .*'vectorized'": lambda: compiled(
        _net(), "vectorised"
    ),
    "Unknown aggregation: 'median'": lambda: kpg.Vectorized("median"),
    "cannot be made from": lambda: kpg.Vectorized("clipped_mean"),
    "`updates` expected one of": lambda: kpg.PerSample(updates="epoch"),
    "`parallel_iterations` expected": lambda: kpg.PerSample(
        parallel_iterations=0
    ),
    r"numpy\.asarray\(x\)": lambda: kpg.per_sample_norms(
        compiled(_sequential()), X.tolist(), Y
    ),
}


@pytest.mark.parametrize("match", [*WRONG_TYPES, *WRONG_VALUES])
def test_arguments_that_are_refused(match):
    error = TypeError if match in WRONG_TYPES else ValueError
    with pytest.raises(error, match=match):
        {**WRONG_TYPES, **WRONG_VALUES}[match]()


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
        model = compiled(_net(seed=1), mode, rate=0.5, **arguments)
        before = model.get_weights()[1]
        model.train_on_batch(X, Y)
        return model.get_weights()[1] - before

    for run_eagerly in (False, True):
        arguments = {"run_eagerly": run_eagerly, "jit_compile": False}
        twice = moved("test_doubled", **arguments)
        once = moved("vectorized", **arguments)
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)
    model = compiled(_net())
    batch = tf.constant(X), tf.constant(Y)
    direct = [
        mode.step(model, *batch, None).gradients[0]
        for mode in (kpg.Vectorized(), Doubled())
    ]
    np.testing.assert_allclose(2 * direct[0], direct[1], rtol=1e-6)
    for inner in ("test_doubled", Doubled()):
        with pytest.raises(ValueError, match="which Doubled has from Vect"):
            kpg.Accumulated(inner=inner)
    mode = {
        "class_name": "test_sign",
        "config": {"aggregation": "test_normalized"},
    }
    np.testing.assert_allclose(np.abs(moved(mode)), 0.5, rtol=1e-6)
    with pytest.raises(ValueError, match="'test_sign' is taken by Sign"):
        kpg.modes.register_gradient_mode("test_sign")(kpg.PerSample)
    with pytest.raises(ValueError, match="taken by ClippedMean"):
        kpg.aggregations.register_aggregation("clipped_mean")(
            type("ClippedMean", (kpg.aggregations.Aggregation,), {})
        )
    with pytest.raises(TypeError, match="must be a subclass of"):
        kpg.aggregations.register_aggregation("x")(keras.layers.Dense)


class OwnPenalty(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        self.add_loss(keras.ops.sum(self.scale**2))
        return x * self.scale


class Raw(layers.Layer):
    """Draws without keras.random."""

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


class Decayed(Net):
    """Its loss reads a weight beside the forward pass."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss + keras.ops.sum(self.dense.kernel**2)


def _decayed():
    model = Decayed()
    model(X)
    return model


def _after_dense(layer, **settings):
    return _net(layers.Dense(4), layer, **settings)


BOTH, TWICE = ("vectorized", "per_sample"), ("vectorized", "eager")
NO_AFFINE = {"center": False, "scale": False}
#: Model, loss, modes, and what they say. "eager" is vectorized, eagerly.
REFUSED = {
    "normalized": (
        lambda: _after_dense(layers.BatchNormalization(**NO_AFFINE)),
        "mse",
        BOTH,
        "depend on the whole batch while training",
    ),
    "normalized inside": (
        lambda: _after_dense(keras.Sequential([layers.BatchNormalization()])),
        "mse",
        BOTH,
        r"\(BatchNormalization\) makes every",
    ),
    "unreduced": (
        _net,
        keras.losses.MeanSquaredError(reduction=None),
        BOTH,
        "The loss must be one number",
    ),
    "centred": (
        lambda: _after_dense(zoo.Centre()),
        "mse",
        TWICE,
        r"'centre'.* mixes the samples of a batch in the op Sub",
    ),
    "own penalty": (
        lambda: _after_dense(OwnPenalty()),
        "mse",
        TWICE,
        "depends on 'own_penalty.* samples are no longer separate",
    ),
    "beside": (
        _decayed,
        "mse",
        ["vectorized"],
        "'decayed.*kernel' .* the samples are no longer separate",
    ),
    "beside, sample by sample": (
        _decayed,
        "mse",
        ["per_sample"],
        "outside the forward pass|samples are no longer separate",
    ),
    "no weight": (
        _net,
        lambda y, p: y**2,
        ["vectorized"],
        "does not depend on any",
    ),
}


@pytest.mark.parametrize(
    ("case", "mode"),
    [(case, mode) for case, row in REFUSED.items() for mode in row[2]],
)
def test_refusals_leave_the_weights_alone(case, mode):
    make, loss, _, match = REFUSED[case]
    model, eager = make(), mode == "eager"
    before = model.get_weights()
    mode = "vectorized" if eager else mode
    compiled(model, mode, loss, run_eagerly=eager)
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=match
    ):
        trained(model, X, Y)
    assert_equal(model.get_weights(), before)


def test_models_without_trainable_variables():
    model = _net()
    model.trainable = False
    with pytest.raises(ValueError, match="no trainable variables"):
        compiled(model, "vectorized")
    model = compiled(Net(trainable=False), "vectorized")
    with pytest.raises(ValueError, match="no trainable variables"):
        trained(model, X, Y)


def test_lengths_must_agree():
    model = compiled(_net(), "vectorized")
    before = model.get_weights()
    with pytest.raises(ValueError, match="x with 6, y with 1"):
        model.train_on_batch(X, Y[:1])
    assert_equal(model.get_weights(), before)
    two = [keras.Input((4,)), keras.Input((2,))]
    both = layers.Concatenate()([layers.Dense(2)(part) for part in two])
    model = kpg.PerGradModel(two, layers.Dense(1)(both))
    compiled(model, "vectorized")
    with pytest.raises(ValueError, match="x with 6, x with 5, y with 6"):
        model.train_on_batch([np.ones((6, 4)), np.ones((5, 2))], np.ones(6))


@pytest.mark.parametrize("eager", [False, True])
def test_draws_without_keras_random_are_served(eager):
    model = _net(layers.Dense(4), Raw())
    for mode in ("vectorized", "per_sample"):
        before = model.get_weights()
        trained(compiled(model, mode, run_eagerly=eager), X, Y)
        pairs = zip(before, model.get_weights(), strict=True)
        assert all((a != b).any() for a, b in pairs)


def test_layers_are_as_before_when_a_call_raises():
    class Failing(layers.Layer):
        def call(self, x):
            raise RuntimeError("on purpose")

        def compute_output_shape(self, shape):
            return shape

    dense = layers.Dense(3, "relu")
    model = _net(dense, Failing(), units=None)
    compiled(model, "vectorized", run_eagerly=True)
    draw = keras.src.backend.random.normal
    with pytest.raises(RuntimeError, match="on purpose"):
        trained(model, X, Y)
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


def _frozen_normalization():
    return layers.BatchNormalization(trainable=False)


def _with_an_activation_of_weights():
    return layers.Dense(3, activation=layers.PReLU())


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
        _frozen_normalization,
        _with_an_activation_of_weights,
    ],
)
def test_layers_that_are_exact(layer, method):
    parts = [layer()]
    if layer is _frozen_normalization:
        parts.insert(0, layers.Dense(3))
    model = compiled(_net(*parts, cls=keras.Model), jit_compile=False)
    x, y = (a.astype("float64") for a in (X, Y))
    found = kpg.per_sample_gradients(model, x, y, method=method)
    training = layer is _frozen_normalization
    oracle.check(found, model, x, y=y, training=training)


@pytest.mark.usefixtures("float64")
def test_a_layer_that_folds_samples_into_one_axis_is_exact():
    model = compiled(_net(layers.Dense(4), Folded(), cls=keras.Model))
    x, y = (a.astype("float64") for a in (X, Y))
    found = kpg.per_sample_gradients(model, x, y)
    looped = kpg.per_sample_gradients(model, x, y, method="per_sample")
    oracle.assert_agree(found, looped)


def test_frozen_batch_normalization_is_served():
    normalization = _frozen_normalization()
    model = _net(layers.Dense(3), normalization, units=None)
    trained(compiled(model, "vectorized"), X, Y)
    np.testing.assert_array_equal(normalization.moving_mean, np.zeros(3))


def test_weights_that_are_not_used_get_no_gradient_as_in_keras():
    layer = Unused()
    model = compiled(_net(layer), "vectorized")
    before = layer.get_weights()
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        trained(model, X, Y)
    assert_equal(layer.get_weights(), before)


def test_the_package_shows_public_names_only():
    assert set(dir(kpg)) == {*kpg.__all__, "__version__"}


@pytest.mark.parametrize(
    "mode", ["batch", "vectorized", "per_sample", "accumulated"]
)
@pytest.mark.usefixtures("float64")
def test_loss_scaling_in_double_precision_is_as_in_keras(mode):
    def made(mode=None):
        optimizer = keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model = _net(seed=1, cls=keras.Model)
        model = compiled(model, mode, optimizer=optimizer)
        return trained(model, np.ones((4, 4)), np.ones((4, 3))).get_weights()

    assert_equal(made(mode), made(), rtol=1e-12)


@pytest.mark.parametrize("name", ["clipped_fraction", "gradient_norm"])
def test_a_metric_with_the_name_of_a_logged_figure_is_refused(name):
    def make(name, mode=None):
        metric = keras.metrics.MeanAbsoluteError(name=name)
        return compiled(_net(), mode, metrics=[metric])

    mode = kpg.Vectorized(kpg.ClippedMean(0.1), statistics=True)
    model = make(name, mode)
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"my_{name}"):
        trained(model, X, Y)
    assert_equal(model.get_weights(), before)
    assert name in trained(make(name), X, Y).history.history
    history = trained(make("other", mode), X, Y).history.history
    assert {"other", name} <= set(history)
    watch = [kpg.callbacks.DataStall()]
    with pytest.raises(ValueError, match="DataStall logs"):
        trained(make("step_ms"), X, Y, callbacks=watch)
