"""What newcomers get wrong, and what they are told: what to do instead."""

import functools
import inspect
import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.checking import numerics
from tests.mistakes import CLASSES, TEXTS, X, Y, each
from tests.models.making import compiled, net, unchanged

layers = keras.layers
GradientVariance = kpg.callbacks.GradientVariance
MODES = ("batch", "vectorized", "per_sample", "accumulated")


def model(mode="batch", *parts, loss="mse", **arguments):
    made = net(*parts, shape=(4,), cls=kpg.PerGradModel)
    return compiled(made, mode, loss=loss, **arguments)


def classifier(mode="vectorized"):
    return model(mode, loss="sparse_categorical_crossentropy")


def without_loss(mode="batch"):
    return model(mode, loss=None)


def fit(made, *data):
    with unchanged(made):
        made.fit(*data, shuffle=False, verbose=0)


class WithoutCall(keras.Model):
    """A model whose own step calls its parts, as that of a GAN."""

    def __init__(self, *parts):
        super().__init__()
        self.part = keras.Sequential([*parts, layers.Dense(1)])

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.part(data) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Derived(kpg.PerGradModel):
    """A class of one's own that is used with inputs and outputs."""


def without_call(*parts):
    made = WithoutCall(*parts)
    made.compile("sgd")
    return made


def private(**arguments):
    given = {"delta": 1e-3, "samples": 12, "batch_size": 4, "epochs": 1}
    return kpg.PrivateTraining(**given, **arguments)


def private_batches(*data, **more):
    return private(noise_multiplier=1.0).batches(*data, **more)


def private_fit(*data):
    plan = private(noise_multiplier=1.0, user_ids="unique")
    made = model(plan.gradient_mode)
    with unchanged(made):
        made.fit(plan.batches(*data), callbacks=[plan.callback], verbose=0)


def search(distribution):
    return kpg.privacy.search(
        model,
        {},
        X,
        y=Y,
        folder="unused",
        epochs=1,
        expected_trials=2,
        public_score=abs,
        distribution=distribution,
    )


def own_step(mode, x, y=CLASSES):
    made = classifier(mode)

    def loss_fn(x, y, sample_weight):
        return keras.losses.sparse_categorical_crossentropy(y, made(x))

    with unchanged(made):
        made.compute_gradients(loss_fn, x, y)


def without_outputs(y_true, y_pred):
    return tf.reduce_mean(y_true, -1)


def without_return(y_true, y_pred):
    keras.ops.mean(y_true - y_pred, -1)


def use_norms(x=X, y=Y, **arguments):
    kpg.per_sample_norms(model(), x, y, **{"verbose": 0, **arguments})


def misused(*data, **arguments):
    return functools.partial(use_norms, *data, **arguments)


def public(name):
    plan = private(noise_multiplier=1.0, user_ids="unique", public_layers=name)
    made = model(plan.gradient_mode, layers.Dense(2, name="normalization"))
    with unchanged(made):
        made.fit(plan.batches(X, Y), callbacks=[plan.callback], verbose=0)


def values(ids):
    made = model("vectorized")
    callbacks = [kpg.callbacks.SampleValues((X, Y), ids=ids)]
    with unchanged(made):
        made.fit(X, Y, callbacks=callbacks, verbose=0)


def other_plan():
    one, other = (
        private(noise_multiplier=1.0, user_ids="unique", clip_norm=norm)
        for norm in (1.0, 2.0)
    )
    fit(model(one.gradient_mode), other.batches(X, Y))


def on_batch(method, *data):
    made = model("vectorized")
    with unchanged(made):
        getattr(made, method)(*data)


def own_loss(loss_fn):
    return lambda: model("vectorized").compute_gradients(loss_fn, X, Y)


NO_LOSS = r"Model '\w+' has no loss.*`compile\(\)`.*add_loss.*Received"
USE_NUMBERS = r"expected numbers as `x`.*Received: texts.*StringLookup"
ON_OR_OFF = r"expected True or False\. Received: "
NO_WEIGHT = "does not depend on any of its trainable variables.*y_true alone"
COMPLEX = "expected real numbers as `{}`.*complex.*imaginary part.*stack"
#: What an AttributeError says → the mistake, or several.
ATTRIBUTE_ERRORS = {
    r"'per_sample_norm'\. Did you mean 'per_sample_norms'\?$": lambda: (
        kpg.per_sample_norm
    ),
    "mean 'keras_pergrad.diagnose.compare_runs'": lambda: kpg.runs.compare_run,
    "'DataStall'": lambda: kpg.callbacks.DataStalls,
    "Vectorized'": lambda: kpg.modes.Vectorised,
    "PrivateTrain": lambda: kpg.PrivacyEngine,
    "'nonesuch'$": lambda: kpg.nonesuch,
    "mean 'per_sample_gradients'": lambda: kpg.GradSampleModule,
    "'per_sample_norms'": lambda: kpg.norms,
}
#: Likewise a TypeError.
TYPE_ERRORS = {
    # Names
    "mean 'gradient_mode'": [
        lambda: model(gradient_modes=1),
        lambda: model().compile("sgd", "mse", l2_norm_clip=1.0),
    ],
    r"clip_norm, noise.*l2_norm_clip=1\.0.*mean 'clip_norm'": lambda: (
        kpg.ClippedMean(l2_norm_clip=1.0)
    ),
    "mean 'clip_norm'": lambda: private(max_grad_norm=1.0),
    "mean 'target_epsilon'": lambda: private(epsilon=1),
    "mean 'microbatch_size'": lambda: kpg.Accumulated(micro_batch_size=2),
    "mean 'verbose'": lambda: kpg.callbacks.DataStall(verbos=0),
    r"per_sample_norms\(\) expected .*per_variable\. Received: "
    r"per_variables=True\. Did you mean 'per_variable'\?$": lambda: (
        kpg.per_sample_norms(model(), X, Y, per_variables=True)
    ),
    "mean 'gradient_modes'": lambda: kpg.check_gradients(
        model(), X, Y, modes=["batch"]
    ),
    r"Received: directions=\[array\(.{,70}\. Did .* 'direction'": lambda: (
        kpg.per_sample_dots(model(), X, Y, directions=[X, Y])
    ),
    "mean 'return_outputs'": lambda: model().compute_gradients(
        abs, X, return_output=True
    ),
    "mean 'sample_weight'": lambda: private_batches(X, Y, sample_weights=1),
    "mean 'curvature'": lambda: kpg.influence.Influence(
        model(), X, Y, curvatures="kfac"
    ),
    "mean 'log_dir'": lambda: kpg.trackers.TensorBoard(logdir="logs"),
    "mean 'loss'": lambda: model().compile(losss="mse"),
    r"Batch\(\) expected no arguments.*clip_norm=1\.0\)$": lambda: kpg.Batch(
        kpg.ClippedMean(1.0)
    ),
    r"expected no arguments\. Received: aggregation=Clipped": lambda: kpg.Batch(
        aggregation=kpg.ClippedMean(1.0)
    ),
    "mean 'aggregation'": lambda: kpg.Vectorized(clip_norm=1.0),
    "model, x, y, sample_weight without a name, o": lambda: (
        kpg.per_sample_norms(model(), X, Y, None, "mse")
    ),
    "all as name=value: delta, .*Received: 2 without": lambda: (
        kpg.PrivateTraining(3.0, 1e-5)
    ),
    r"inner without a name, .*: tail\. Received: 4 wit": lambda: (
        kpg.Accumulated(1, 2, "batch", "drop")
    ),
    "x, y, sample_weight without a name, .*Received: 5 w": lambda: (
        model().compute_gradients(abs, X, Y, None, [])
    ),
    "`path` expected the path of a file.*Received: path=True": lambda: (
        private(noise_multiplier=1.0).statement().to_html(True)
    ),
    "\"loss\", an index.*mean 'loss'": lambda: kpg.input_gradients(
        model(), X, outputs="losses", verbose=0
    ),
    "Expected a gradient mode.*write Vectorized": lambda: kpg.Accumulated(
        steps=2, inner=kpg.ClippedMean(1.0)
    ),
    # Data
    "`y` as an array .*Received: a str": lambda: private_batches(
        X, y="balanced"
    ),
    "`sample_weight` as an array .*Received: a str": lambda: private_batches(
        X, y=Y, sample_weight="balanced"
    ),
    # Arguments
    r"two arguments, loss\(y_true, y_pred\).*function of \(y\)": misused(
        loss=lambda y: y
    ),
    r"'vectorized' in third place.*gradient_mode=": lambda: model().compile(
        "sgd", "mse", "vectorized"
    ),
    "`variables` expected variables, a layer.*'dense'": lambda: model(
        "vectorized"
    ).compute_gradients(
        lambda x, y, sample_weight: x[:, 0], X, Y, variables="dense"
    ),
    # Models and steps
    r"Received: Functional\. Write PerGradModel\.from_model\(mo": lambda: (
        kpg.PerGradModel(net())
    ),
    r"Received: gradient_mode='vectorized'\. Give it to compile": [
        lambda: net(
            shape=(4,),
            cls=functools.partial(kpg.PerGradModel, gradient_mode="vectorized"),
        ),
        lambda: net(
            shape=(4,),
            cls=functools.partial(Derived, gradient_mode="vectorized"),
        ),
    ],
    r"fit\(\) expected .*mean 'batch_size'": lambda: model().fit(
        X, Y, batchsize=4
    ),
    r"Received: the class WithoutCall; write WithoutCall\(\.\.\.\)": lambda: (
        kpg.PerGradModel.from_model(WithoutCall)
    ),
    r"Received: list.*from_model\(keras\.Sequential\(layers\)\)": lambda: (
        kpg.PerGradModel([layers.Dense(3)])
    ),
    r"three arguments, loss_fn\(x, y, sample_weight\).*\(x, y\)\.": own_loss(
        lambda x, y: y
    ),
    "compute_gradients.*type ndarray": lambda: model(
        "vectorized"
    ).compute_gradients(X, Y),
}
#: Likewise a ValueError.
VALUE_ERRORS = {
    # Names
    "mean 'vectorized'": [
        lambda: model("vectorised"),
        lambda: kpg.per_sample_norms(model(), X, Y, method="vectorised"),
    ],
    "mean 'poisson'": [
        lambda: private(sampling="poison"),
        lambda: search("poison"),
    ],
    "mean 'graph'": lambda: kpg.check_gradients(
        model(), X, Y, settings=["grph"]
    ),
    "at least one mode to check, or None for all.*=\\[\\]": lambda: (
        kpg.check_gradients(model(), X, Y, gradient_modes=[], verbose=0)
    ),
    "mean 'kfac'": lambda: kpg.influence.Influence(
        model(), X, Y, curvature="kfca"
    ),
    "one of None, 'sum', .*mean 'norm'": lambda: kpg.input_gradients(
        model(), X, reduce="nrm", verbose=0
    ),
    "mean 'redrawn'": lambda: private(
        noise="correlated",
        noise_multiplier=1.0,
        earlier_noise="redrawm",
    ),
    "one of 'batch', .*, or a mode.*Received: Accumulated": lambda: (
        kpg.Accumulated(steps=2, inner=kpg.Accumulated(steps=2))
    ),
    "one of 'auto', 'epoch'.*every='epok'": lambda: GradientVariance(
        (X, Y), every="epok"
    ),
    "mean 'training'.*'probe' is a fixed batch": lambda: GradientVariance(
        source="train"
    ),
    "mean 'float32'.*compare them with ==": lambda: numerics.tolerance(
        "float23"
    ),
    "mean 'alpha'": lambda: GradientVariance((X, Y), instruments="alpa"),
    "`loss` expected the name of a Keras loss.*Received: los": [
        lambda loss=loss: kpg.per_sample_gradients(
            model(), X, Y, loss=loss, verbose=0
        )
        for loss in ("msee", 3, Y)
    ],
    # Data
    r"Expected `y`.*Received: y=None": lambda: fit(model("vectorized"), X),
    "Expected `y`": [
        lambda: fit(model(), X),
        lambda: fit(model(), tf.data.Dataset.from_tensors(X)),
    ],
    r"Expected private\.batches\(x, y\)\. Received: y=None": lambda: (
        private_fit(X)
    ),
    USE_NUMBERS: [
        lambda: fit(model(), TEXTS, Y),
        misused(TEXTS),
        lambda: kpg.input_gradients(model(), TEXTS, verbose=0),
        lambda: kpg.check_gradients(model(), TEXTS, Y, verbose=0),
        lambda: kpg.explain(model(), 12, x=TEXTS),
        lambda: kpg.diagnose.predict_placement(model(), TEXTS, Y),
    ],
    r"expected numbers as `x`.*StringLookup.*dataset\.map": [
        functools.partial(own_step, mode, texts)
        for mode in MODES
        for texts in (TEXTS, tf.constant(TEXTS))
    ],
    "Number the classes": [
        lambda: own_step("vectorized", X, TEXTS[:, 0]),
        lambda: fit(classifier(), X, TEXTS[:, 0]),
    ],
    r"a list of numbers.*numpy\.asarray\(x\)": [
        lambda: own_step("vectorized", X.tolist()),
        lambda: fit(model(), X.tolist(), Y),
    ],
    r"Received: a list of texts.*numpy\.asarray\(x\)": [
        lambda: fit(model(), TEXTS.tolist(), Y),
        misused(TEXTS.tolist()),
        lambda: own_step("vectorized", TEXTS.tolist()),
        lambda: kpg.check_gradients(model(), TEXTS.tolist(), Y, verbose=0),
        lambda: kpg.explain(model(), 12, x=TEXTS.tolist()),
        lambda: kpg.influence.Influence(model(), TEXTS.tolist(), Y),
    ],
    r"Received: 'data\.npy'\. Load it": lambda: norms(model(), "data.npy", Y),
    "`x` expected.*Received: None": lambda: norms(model(), None, Y),
    r"an iterator, of type list_iterator.*from_generator": lambda: norms(
        model(), iter([(X, Y)]), None
    ),
    "`x` expected an array.*an object of type PrivateBatches": lambda: norms(
        model(), private_batches(X, Y), None
    ),
    r"samples=12. Received: 6. Give PrivateTraining\(samples=": lambda: (
        private_batches(X[:6], Y[:6])
    ),
    COMPLEX.format("x"): [
        misused(X + 1j),
        lambda: fit(model("vectorized"), X + 1j, Y),
        lambda: fit(
            model("vectorized"), tf.data.Dataset.from_tensors((X + 1j, Y))
        ),
        lambda: kpg.input_gradients(model(), X + 1j, verbose=0),
    ],
    COMPLEX.format("y"): [
        misused(X, Y + 1j),
        lambda: fit(model("vectorized"), X, Y + 1j),
    ],
    r"Python objects.*type float.*x\.astype\('float32'\)": [
        misused(X.astype(object)),
        lambda: fit(model(), X.astype(object), Y),
    ],
    r"type list\. Rows of different.*pad_sequences\(x": misused(
        np.array([[1], [1, 2]], object)
    ),
    r"x with 4, y with 3\. If these are of one.*x\[None\]": misused(X[0], Y[0]),
    r"x with 4, y with 3\. If these are of one.*batch\(32\)": lambda: fit(
        model("vectorized"), tf.data.Dataset.from_tensor_slices((X, Y))
    ),
    r"`x` expected an array.*list of numbers.*asarray\(x\)": [
        functools.partial(on_batch, method, X.tolist(), Y.tolist())
        for method in ("train_on_batch", "test_on_batch")
    ],
    r"`y` expected an array.*list of numbers.*asarray\(y\)": lambda: on_batch(
        "train_on_batch", X, Y.tolist()
    ),
    "compares its outputs with targets.*Expected `y`": [
        functools.partial(on_batch, method, X)
        for method in ("train_on_batch", "test_on_batch", "evaluate")
    ],
    "^The loss of model .* compares its outputs with targets": lambda: (
        kpg.per_sample_norms(net(shape=(4,)), X, loss="mse")
    ),
    r"one id for each.*ids='a'": lambda: values("a"),
    "the number of samples": lambda: values(12.5),
    # Arguments
    **{
        f"`{name}` {ON_OR_OFF}{name}='no'": functools.partial(
            use, **{name: "no"}
        )
        for name, use in {
            "training": use_norms,
            "per_variable": use_norms,
            "statistics": kpg.Vectorized,
            "in_place": lambda **no: kpg.replace_batch_norm(model(), **no),
            "exact": kpg.aggregations.MGDA,
            "return_outputs": lambda **no: model().compute_gradients(
                abs, X, **no
            ),
        }.items()
    },
    f"`statistics` {ON_OR_OFF}": lambda: kpg.Vectorized("mean", "no"),
    ON_OR_OFF: misused(training=None),
    "`verbose` expected 0, 1 or 2": misused(verbose="no"),
    r"'norm'\. Did you mean 'normalization'\? The layers are: '": lambda: (
        public("norm")
    ),
    r"expected a list of names.*public_layers=3": lambda: public(3),
    r"is 'ClippedMean'.*\['x'\].*model\.compile\(vouched": lambda: private(
        noise_multiplier=1.0, vouched="x"
    ),
    "expected a list of names.*vouched=3": lambda: model(
        "vectorized", vouched=3
    ),
    r"Expected clipping=ClippedMean\(clip_norm=1\.0.*"
    r"=ClippedMean\(clip_n": other_plan,
    "a number, is `noise_multiplier`": lambda: private(noise=1.1),
    r"^.{0,120}$": lambda: kpg.PrivateTraining(
        delta=1e-3, samples=X, batch_size=4
    ),
    r"a keras\.optimizers\.schedules\.LearningRateSchedule\. Rec": lambda: (
        kpg.ClippedMean(lambda: 1.0)
    ),
    r"which has 1\. Received: loss=\['mse', 'mae'\].*their sum": misused(
        loss=["mse", "mae"]
    ),
    NO_WEIGHT: [
        lambda function=function, method=method: function(
            model(), X, Y, loss=without_outputs, method=method, verbose=0
        )
        for function in (
            kpg.per_sample_gradients,
            kpg.per_sample_norms,
            kpg.gradient_statistics,
        )
        for method in ("vectorized", "per_sample")
    ],
    "does not depend on any input.*y_true alone": lambda: kpg.input_gradients(
        model(), X, Y, loss=without_outputs, verbose=0
    ),
    # Models and steps
    "no trainable variables.*Set `trainable = True`": lambda: norms(
        compiled(net(shape=(4,), units=None)), X, X
    ),
    "Expected a call outside of it": tf.function(
        lambda: kpg.input_gradients(model(), X), autograph=False
    ),
    "Expected a call outside of it.*leave out @tf.function": tf.function(
        lambda: kpg.check_gradients(model(), X, Y), autograph=False
    ),
    NO_LOSS: [
        lambda: kpg.check_gradients(unbuilt(loss=None), X, Y, verbose=0),
        lambda: norms(without_loss(), X, Y),
        lambda: kpg.per_sample_norms(without_loss(), X, Y, method="per_sample"),
        lambda: without_loss().evaluate(X, Y, verbose=0),
        *(
            lambda mode=mode: fit(without_loss(mode), X, Y)
            for mode in (*MODES, kpg.Accumulated(microbatch_size=2))
        ),
    ],
    r"no call\(\).*compute_gradients": lambda: kpg.per_sample_norms(
        without_call(), X, verbose=0
    ),
    r"no call\(\).*'dense\w*'.*not\. Train it": lambda: (
        kpg.diagnose.predict_placement(without_call(), X, Y)
    ),
    r"layer 'inner' \(BatchNormalization\).*replace_batch_norm": lambda: fit(
        model(
            "vectorized",
            layers.Reshape((2, 2)),
            layers.TimeDistributed(layers.BatchNormalization(name="inner")),
            layers.Flatten(),
        ),
        *(X, Y),
    ),
}


@each(
    {
        AttributeError: ATTRIBUTE_ERRORS,
        TypeError: TYPE_ERRORS,
        ValueError: VALUE_ERRORS,
    }
)
def test_a_mistake_is_told_with_the_way_out(error, match, mistake):
    with pytest.raises(error, match=match):
        mistake()


def public_functions():
    values = [getattr(kpg, name) for name in kpg.__all__]
    spaces = [kpg, *(v for v in values if isinstance(v, types.ModuleType))]
    for space in spaces:
        for name in space.__all__:
            function = getattr(space, name)
            if inspect.isfunction(function):
                yield f"{space.__name__}.{name}", function


def test_each_function_explains_an_argument_that_it_does_not_have():
    explained = []
    for name, function in public_functions():
        parameters = inspect.signature(function).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        if inspect.Parameter.VAR_KEYWORD in kinds or len(kinds) < 2:
            continue
        with pytest.raises(TypeError, match="expected arguments among"):
            function(**{f"{list(parameters)[-1]}x": 1})
        explained.append(name)
    assert len(explained) > 15, explained


@pytest.mark.parametrize(
    ("advice", "targets", "loss"),
    [
        ("categorical_crossentropy", np.eye(3)[CLASSES], "sparse"),
        ("to_categorical", CLASSES, "dense"),
        ("from 0 to the number of outputs", CLASSES + 1, "sparse"),
    ],
)
def test_targets_of_another_kind_get_advice(advice, targets, loss):
    """What Keras and TensorFlow say alone has no way out."""
    name = "categorical_crossentropy"
    name = f"sparse_{name}" if loss == "sparse" else name
    made = model("vectorized", loss=name)
    check = functools.partial(kpg.check_gradients, made, settings=["graph"])
    for use in (made.fit, lambda x, y, verbose: norms(made, x, y), check):
        with pytest.raises(Exception) as error:
            use(X, targets, verbose=0)
        assert advice in " ".join(error.value.__notes__)


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (without_return, "without a `return`"),
        (lambda y_true, y_pred: np.mean(y_true - y_pred, -1), "keras.ops"),
    ],
)
def test_a_loss_that_gives_no_tensor_gets_advice(loss, advice):
    for use in (
        lambda: fit(model("vectorized", loss=loss), X, Y),
        lambda: fit(model(loss=loss), X, Y),
        misused(loss=loss),
    ):
        with pytest.raises((ValueError, NotImplementedError)) as error:
            use()
        assert advice in " ".join(error.value.__notes__)


def test_texts_for_a_model_that_knows_no_inputs_get_advice():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    for use in (
        lambda m: norms(m, TEXTS, Y),
        lambda m: kpg.explain(m, 12, x=TEXTS),
        lambda m: kpg.input_gradients(m, TEXTS, verbose=0),
        lambda m: compiled(kpg.PerGradModel.from_model(m)).fit(TEXTS, Y),
    ):
        with pytest.raises(ValueError, match="str") as error:
            use(compiled(Own()))
        assert "TextVectorization" in " ".join(error.value.__notes__)


def test_a_function_may_turn_texts_into_numbers():
    lookup = layers.StringLookup(vocabulary=["a"])
    made = model("vectorized")

    def loss_fn(x, y, sample_weight):
        y_pred = made(tf.cast(lookup(x), tf.float32))
        return keras.losses.mean_squared_error(y, y_pred)

    assert made.compute_gradients(loss_fn, TEXTS, Y)[0][0] is not None


def norms(made, x, y):
    return kpg.per_sample_norms(made, x, y, verbose=0)


def unbuilt(loss="mse"):
    return compiled(
        keras.Sequential([layers.Dense(2, "tanh"), layers.Dense(3)]), loss=loss
    )


BATCHES = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
#: What takes a batch of a model, and so can build it.
BUILDERS = {
    "check": lambda m: kpg.check_gradients(
        m, X, Y, gradient_modes="batch", settings=["graph"], verbose=0
    ),
    "explain": lambda m: kpg.explain(m, 12, x=X),
    "placement": lambda m: kpg.diagnose.predict_placement(m, X, Y),
    "profile": lambda m: kpg.diagnose.profile_pipeline(BATCHES, m, batches=2),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_that_no_call_has_built_is_built_on_the_batch(name):
    assert BUILDERS[name](unbuilt())


def test_a_model_without_call_is_profiled_once_its_parts_are_built():
    made, data = without_call(), BATCHES.map(lambda x, y: x)
    made.fit(data, shuffle=False, verbose=0)
    with unchanged(made):
        profile = kpg.diagnose.profile_pipeline(data, made, batches=2)
    assert profile.model_batches_per_s > 0


def test_another_backend_is_told_also_where_it_is_not_installed():
    done = subprocess.run(
        [sys.executable, "-c", "import keras_pergrad"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert "'jax'. Set the environment variable KERAS_BACKEND" in done.stderr
