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
from tests.models.making import compiled, net, unchanged

layers = keras.layers
X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X[:, :3]
TEXTS = np.array([["a"] * 4] * 12)
CLASSES = np.arange(12) % 3


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


def misused_norms(x=X, y=Y, **arguments):
    return lambda: kpg.per_sample_norms(
        model(), x, y, **{"verbose": 0, **arguments}
    )


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


TYPE, VALUE, ATTRIBUTE = TypeError, ValueError, AttributeError
NO_LOSS = r"Model '\w+' has no loss.*`compile\(\)`.*add_loss.*Received"
USE_NUMBERS = r"expected numbers as `x`.*Received: texts.*StringLookup"
ON_OR_OFF = r"expected True or False\. Received: "
NO_WEIGHT = "does not depend on any of its trainable variables.*y_true alone"
COMPLEX = "expected real numbers as `{}`.*complex.*imaginary part.*stack"
#: What is wrong → the error, what it says, and the mistake.
MISTAKES = {
    # Names
    "mode": (VALUE, "mean 'vectorized'", lambda: model("vectorised")),
    "no_mode": (TYPE, "mean 'gradient_mode'", lambda: model(gradient_modes=1)),
    "function": (
        *(ATTRIBUTE, r"'per_sample_norm'\. Did you mean 'per_sample_norms'\?$"),
        lambda: kpg.per_sample_norm,
    ),
    "elsewhere": (
        *(ATTRIBUTE, "mean 'keras_pergrad.diagnose.compare_runs'"),
        lambda: kpg.runs.compare_run,
    ),
    "callback": (ATTRIBUTE, "'DataStall'", lambda: kpg.callbacks.DataStalls),
    "of_modes": (ATTRIBUTE, "Vectorized'", lambda: kpg.modes.Vectorised),
    "of_peers": (ATTRIBUTE, "PrivateTrain", lambda: kpg.PrivacyEngine),
    "nothing_alike": (ATTRIBUTE, "'nonesuch'$", lambda: kpg.nonesuch),
    "clip_norm": (
        TYPE,
        r"clip_norm, noise.*l2_norm_clip=1\.0.*mean 'clip_norm'",
        lambda: kpg.ClippedMean(l2_norm_clip=1.0),
    ),
    "max_grad_norm": (
        *(TYPE, "mean 'clip_norm'"),
        lambda: private(max_grad_norm=1.0),
    ),
    "epsilon": (TYPE, "mean 'target_epsilon'", lambda: private(epsilon=1)),
    "size": (
        *(TYPE, "mean 'microbatch_size'"),
        lambda: kpg.Accumulated(micro_batch_size=2),
    ),
    "of_a_callback": (
        *(TYPE, "mean 'verbose'"),
        lambda: kpg.callbacks.DataStall(verbos=0),
    ),
    "of_a_function": (
        TYPE,
        r"per_sample_norms\(\) expected .*per_variable\. Received: "
        r"per_variables=True\. Did you mean 'per_variable'\?$",
        lambda: kpg.per_sample_norms(model(), X, Y, per_variables=True),
    ),
    "of_a_function_of_peers": (
        *(TYPE, "mean 'gradient_modes'"),
        lambda: kpg.check_gradients(model(), X, Y, modes=["batch"]),
    ),
    "array_of_a_function": (
        *(TYPE, r"Received: directions=\[array\(.{,70}\. Did .* 'direction'"),
        lambda: kpg.per_sample_dots(model(), X, Y, directions=[X, Y]),
    ),
    "of_a_method": (
        *(TYPE, "mean 'return_outputs'"),
        lambda: model().compute_gradients(abs, X, return_output=True),
    ),
    "of_private_batches": (
        *(TYPE, "mean 'sample_weight'"),
        lambda: private(noise_multiplier=1.0).batches(X, Y, sample_weights=1),
    ),
    "of_influence": (
        *(TYPE, "mean 'curvature'"),
        lambda: kpg.influence.Influence(model(), X, Y, curvatures="kfac"),
    ),
    "of_a_tracker": (
        *(TYPE, "mean 'log_dir'"),
        lambda: kpg.trackers.TensorBoard(logdir="logs"),
    ),
    "of_compile": (TYPE, "mean 'loss'", lambda: model().compile(losss="mse")),
    "aggregation_of_batch": (
        *(TYPE, r"Batch\(\) expected no arguments.*clip_norm=1\.0\)$"),
        lambda: kpg.Batch(kpg.ClippedMean(1.0)),
    ),
    "aggregation_of_batch_by_name": (
        *(TYPE, r"expected no arguments\. Received: aggregation=Clipped"),
        lambda: kpg.Batch(aggregation=kpg.ClippedMean(1.0)),
    ),
    "of_peers_of_functions": (
        *(ATTRIBUTE, "mean 'per_sample_gradients'"),
        lambda: kpg.GradSampleModule,
    ),
    "clip_norm_of_a_mode": (
        *(TYPE, "mean 'aggregation'"),
        lambda: kpg.Vectorized(clip_norm=1.0),
    ),
    "clip_norm_of_compile": (
        *(TYPE, "mean 'gradient_mode'"),
        lambda: model().compile("sgd", "mse", l2_norm_clip=1.0),
    ),
    **{
        f"without_a_name_of_{name}": (TYPE, message, use)
        for name, message, use in (
            (
                *(
                    "a_function",
                    r"model, x, y, sample_weight without a name, o",
                ),
                lambda: kpg.per_sample_norms(model(), X, Y, None, "mse"),
            ),
            (
                *(
                    "a_class",
                    r"all as name=value: delta, .*Received: 2 without",
                ),
                lambda: kpg.PrivateTraining(3.0, 1e-5),
            ),
            (
                *(
                    "a_mode",
                    r"inner without a name, .*: tail\. Received: 4 wit",
                ),
                lambda: kpg.Accumulated(1, 2, "batch", "drop"),
            ),
            (
                *(
                    "a_method",
                    "x, y, sample_weight without a name, .*Received: 5 w",
                ),
                lambda: model().compute_gradients(abs, X, Y, None, []),
            ),
        )
    },
    "end_of_a_name": (ATTRIBUTE, "'per_sample_norms'", lambda: kpg.norms),
    "sampling": (VALUE, "mean 'poisson'", lambda: private(sampling="poison")),
    "method": (
        *(VALUE, "mean 'vectorized'"),
        lambda: kpg.per_sample_norms(model(), X, Y, method="vectorised"),
    ),
    "setting": (
        *(VALUE, "mean 'graph'"),
        lambda: kpg.check_gradients(model(), X, Y, settings=["grph"]),
    ),
    "no_setting_of_check": (
        *(VALUE, "at least one mode to check, or None for all.*=\\[\\]"),
        lambda: kpg.check_gradients(
            model(), X, Y, gradient_modes=[], verbose=0
        ),
    ),
    **{
        f"given_loss_{type(loss).__name__}": (
            *(VALUE, "`loss` expected the name of a Keras loss.*Received: los"),
            lambda loss=loss: kpg.per_sample_gradients(
                model(), X, Y, loss=loss, verbose=0
            ),
        )
        for loss in ("msee", 3, Y)
    },
    "page_to_a_number": (
        *(TYPE, "`path` expected the path of a file.*Received: path=True"),
        lambda: private(noise_multiplier=1.0).statement().to_html(True),
    ),
    "curvature": (
        *(VALUE, "mean 'kfac'"),
        lambda: kpg.influence.Influence(model(), X, Y, curvature="kfca"),
    ),
    "outputs": (
        *(TYPE, "\"loss\", an index.*mean 'loss'"),
        lambda: kpg.input_gradients(model(), X, outputs="losses", verbose=0),
    ),
    "reduce": (
        *(VALUE, "one of None, 'sum', .*mean 'norm'"),
        lambda: kpg.input_gradients(model(), X, reduce="nrm", verbose=0),
    ),
    "earlier_noise": (
        *(VALUE, "mean 'redrawn'"),
        lambda: private(
            noise="correlated",
            noise_multiplier=1.0,
            earlier_noise="redrawm",
        ),
    ),
    "distribution": (VALUE, "mean 'poisson'", lambda: search("poison")),
    "inner": (
        *(VALUE, "one of 'batch', .*, or a mode.*Received: Accumulated"),
        lambda: kpg.Accumulated(steps=2, inner=kpg.Accumulated(steps=2)),
    ),
    "aggregation_as_inner": (
        *(TYPE, "Expected a gradient mode.*write Vectorized"),
        lambda: kpg.Accumulated(steps=2, inner=kpg.ClippedMean(1.0)),
    ),
    "every": (
        *(VALUE, "one of 'auto', 'epoch'.*every='epok'"),
        lambda: kpg.callbacks.GradientVariance((X, Y), every="epok"),
    ),
    "source": (
        *(VALUE, "mean 'training'.*'probe' is a fixed batch"),
        lambda: kpg.callbacks.GradientVariance(source="train"),
    ),
    "dtype": (
        *(VALUE, "mean 'float32'.*compare them with =="),
        lambda: numerics.tolerance("float23"),
    ),
    "instruments": (
        *(VALUE, "mean 'alpha'"),
        lambda: kpg.callbacks.GradientVariance((X, Y), instruments="alpa"),
    ),
    # Data
    "no_targets": (
        *(VALUE, r"Expected `y`.*Received: y=None"),
        lambda: fit(model("vectorized"), X),
    ),
    "no_targets_by_batch": (VALUE, "Expected `y`", lambda: fit(model(), X)),
    "no_targets_in_a_dataset": (
        *(VALUE, "Expected `y`"),
        lambda: fit(model(), tf.data.Dataset.from_tensors(X)),
    ),
    "no_targets_in_private_batches": (
        *(VALUE, r"Expected private\.batches\(x, y\)\. Received: y=None"),
        lambda: private_fit(X),
    ),
    "texts": (VALUE, USE_NUMBERS, lambda: fit(model(), TEXTS, Y)),
    "texts_of_norms": (
        *(VALUE, USE_NUMBERS),
        lambda: kpg.per_sample_norms(model(), TEXTS, Y, verbose=0),
    ),
    "texts_of_input_gradients": (
        *(VALUE, USE_NUMBERS),
        lambda: kpg.input_gradients(model(), TEXTS, verbose=0),
    ),
    "texts_of_check": (
        *(VALUE, USE_NUMBERS),
        lambda: kpg.check_gradients(model(), TEXTS, Y, verbose=0),
    ),
    "texts_of_explain": (
        *(VALUE, USE_NUMBERS),
        lambda: kpg.explain(model(), 12, x=TEXTS),
    ),
    "texts_of_placement": (
        *(VALUE, USE_NUMBERS),
        lambda: kpg.diagnose.predict_placement(model(), TEXTS, Y),
    ),
    **{
        f"texts_of_own_step_{mode}_{kind}": (
            *(VALUE, r"expected numbers as `x`.*StringLookup.*dataset\.map"),
            lambda mode=mode, texts=texts: own_step(mode, texts),
        )
        for mode in ("batch", "vectorized", "per_sample", "accumulated")
        for kind, texts in (("array", TEXTS), ("tensor", tf.constant(TEXTS)))
    },
    "texts_as_targets_of_own_step": (
        *(VALUE, "Number the classes"),
        lambda: own_step("vectorized", X, TEXTS[:, 0]),
    ),
    "lists_of_own_step": (
        *(VALUE, r"a list of numbers.*numpy\.asarray\(x\)"),
        lambda: own_step("vectorized", X.tolist()),
    ),
    **{
        f"lists_of_texts_of_{name}": (
            *(VALUE, r"Received: a list of texts.*numpy\.asarray\(x\)"),
            lambda use=use: use(TEXTS.tolist()),
        )
        for name, use in {
            "fit": lambda x: fit(model(), x, Y),
            "norms": lambda x: norms(model(), x, Y),
            "own_step": lambda x: own_step("vectorized", x),
            "check": lambda x: kpg.check_gradients(model(), x, Y, verbose=0),
            "explain": lambda x: kpg.explain(model(), 12, x=x),
            "influence": lambda x: kpg.influence.Influence(model(), x, Y),
        }.items()
    },
    "path": (
        *(VALUE, r"Received: 'data\.npy'\. Load it"),
        lambda: norms(model(), "data.npy", Y),
    ),
    "no_inputs": (
        *(VALUE, "`x` expected.*Received: None"),
        lambda: norms(model(), None, Y),
    ),
    "iterator": (
        *(VALUE, r"an iterator, of type list_iterator.*from_generator"),
        lambda: norms(model(), iter([(X, Y)]), None),
    ),
    "private_batches_of_norms": (
        *(VALUE, "`x` expected an array.*an object of type PrivateBatches"),
        lambda: norms(
            model(), private(noise_multiplier=1.0).batches(X, Y), None
        ),
    ),
    **{
        f"text_as_private_{name}": (
            *(TYPE, f"`{name}` as an array .*Received: a str"),
            lambda name=name: private(noise_multiplier=1.0).batches(
                X, **{"y": Y, name: "balanced"}
            ),
        )
        for name in ("y", "sample_weight")
    },
    "other_private_samples": (
        *(VALUE, r"samples=12. Received: 6. Give PrivateTraining\(samples="),
        lambda: private(noise_multiplier=1.0).batches(X[:6], Y[:6]),
    ),
    "texts_as_targets": (
        *(VALUE, "Number the classes"),
        lambda: fit(classifier(), X, TEXTS[:, 0]),
    ),
    "lists": (
        *(VALUE, r"a list of numbers.*numpy\.asarray\(x\)"),
        lambda: fit(model(), X.tolist(), Y),
    ),
    **{
        f"complex_{name}": (VALUE, COMPLEX.format(name), use)
        for name, use in {
            "x": misused_norms(X + 1j),
            "y": misused_norms(X, Y + 1j),
        }.items()
    },
    **{
        f"complex_of_{name}": (VALUE, COMPLEX.format("x"), use)
        for name, use in {
            "fit": lambda: fit(model("vectorized"), X + 1j, Y),
            "a_dataset": lambda: fit(
                model("vectorized"), tf.data.Dataset.from_tensors((X + 1j, Y))
            ),
            "input_gradients": lambda: kpg.input_gradients(
                model(), X + 1j, verbose=0
            ),
        }.items()
    },
    "complex_y_of_fit": (
        *(VALUE, COMPLEX.format("y")),
        lambda: fit(model("vectorized"), X, Y + 1j),
    ),
    "objects": (
        *(VALUE, r"Python objects.*type float.*x\.astype\('float32'\)"),
        misused_norms(X.astype(object)),
    ),
    "objects_of_fit": (
        *(VALUE, r"Python objects.*type float.*x\.astype\('float32'\)"),
        lambda: fit(model(), X.astype(object), Y),
    ),
    "rows_of_different_lengths": (
        *(VALUE, r"type list\. Rows of different.*pad_sequences\(x"),
        misused_norms(np.array([[1], [1, 2]], object)),
    ),
    "one_sample": (
        *(VALUE, r"x with 4, y with 3\. If these are of one.*x\[None\]"),
        misused_norms(X[0], Y[0]),
    ),
    "no_batches": (
        *(VALUE, r"x with 4, y with 3\. If these are of one.*batch\(32\)"),
        lambda: fit(
            model("vectorized"), tf.data.Dataset.from_tensor_slices((X, Y))
        ),
    ),
    **{
        f"lists_of_{method}": (
            *(VALUE, r"`x` expected an array.*list of numbers.*asarray\(x\)"),
            lambda method=method: on_batch(method, X.tolist(), Y.tolist()),
        )
        for method in ("train_on_batch", "test_on_batch")
    },
    "lists_as_targets_of_train_on_batch": (
        *(VALUE, r"`y` expected an array.*list of numbers.*asarray\(y\)"),
        lambda: on_batch("train_on_batch", X, Y.tolist()),
    ),
    **{
        f"no_targets_of_{method}": (
            *(VALUE, "compares its outputs with targets.*Expected `y`"),
            lambda method=method: on_batch(method, X),
        )
        for method in ("train_on_batch", "test_on_batch", "evaluate")
    },
    "no_targets_of_a_given_loss": (
        *(VALUE, "^The loss of model .* compares its outputs with targets"),
        lambda: kpg.per_sample_norms(net(shape=(4,)), X, loss="mse"),
    ),
    "text_as_ids": (VALUE, r"one id for each.*ids='a'", lambda: values("a")),
    "half_an_id": (VALUE, "the number of samples", lambda: values(12.5)),
    # Arguments
    **{
        f"text_as_{name}": (VALUE, f"`{name}` {ON_OR_OFF}{name}='no'", use)
        for name, use in {
            "training": misused_norms(training="no"),
            "per_variable": misused_norms(per_variable="no"),
            "statistics": lambda: kpg.Vectorized(statistics="no"),
            "in_place": lambda: kpg.replace_batch_norm(model(), in_place="no"),
            "exact": lambda: kpg.aggregations.MGDA(exact="no"),
            "return_outputs": lambda: model().compute_gradients(
                abs, X, return_outputs="no"
            ),
        }.items()
    },
    "text_in_place": (
        *(VALUE, f"`statistics` {ON_OR_OFF}"),
        lambda: kpg.Vectorized("mean", "no"),
    ),
    "no_training": (VALUE, ON_OR_OFF, misused_norms(training=None)),
    "text_as_verbose": (
        *(VALUE, "`verbose` expected 0, 1 or 2"),
        misused_norms(verbose="no"),
    ),
    "public_layers": (
        *(VALUE, r"'norm'\. Did you mean 'normalization'\? The layers are: '"),
        lambda: public("norm"),
    ),
    "no_public_layers": (
        *(VALUE, r"expected a list of names.*public_layers=3"),
        lambda: public(3),
    ),
    "vouched": (
        *(VALUE, r"is 'ClippedMean'.*\['x'\].*model\.compile\(vouched"),
        lambda: private(noise_multiplier=1.0, vouched="x"),
    ),
    "no_vouched": (
        *(VALUE, "expected a list of names.*vouched=3"),
        lambda: model("vectorized", vouched=3),
    ),
    "other_clipping": (
        VALUE,
        r"Expected clipping=ClippedMean\(clip_norm=1\.0.*=ClippedMean\(clip_n",
        other_plan,
    ),
    "noise": (
        *(VALUE, "a number, is `noise_multiplier`"),
        lambda: private(noise=1.1),
    ),
    "array_as_samples": (
        *(VALUE, r"^.{0,120}$"),
        lambda: kpg.PrivateTraining(delta=1e-3, samples=X, batch_size=4),
    ),
    "function_as_clip_norm": (
        *(VALUE, r"a keras\.optimizers\.schedules\.LearningRateSchedule\. Rec"),
        lambda: kpg.ClippedMean(lambda: 1.0),
    ),
    "given_losses": (
        *(VALUE, r"which has 1\. Received: loss=\['mse', 'mae'\].*their sum"),
        misused_norms(loss=["mse", "mae"]),
    ),
    "given_loss_of_one_argument": (
        *(TYPE, r"two arguments, loss\(y_true, y_pred\).*function of \(y\)"),
        misused_norms(loss=lambda y: y),
    ),
    **{
        f"loss_without_outputs_of_{function}_{method}": (
            *(VALUE, NO_WEIGHT),
            lambda function=function, method=method: getattr(kpg, function)(
                model(), X, Y, loss=without_outputs, method=method, verbose=0
            ),
        )
        for function in (
            "per_sample_gradients",
            "per_sample_norms",
            "gradient_statistics",
        )
        for method in ("vectorized", "per_sample")
    },
    "loss_without_outputs_of_input_gradients": (
        *(VALUE, "does not depend on any input.*y_true alone"),
        lambda: kpg.input_gradients(
            model(), X, Y, loss=without_outputs, verbose=0
        ),
    ),
    "mode_in_place_of_loss_weights": (
        *(TYPE, r"'vectorized' in third place.*gradient_mode="),
        lambda: model().compile("sgd", "mse", "vectorized"),
    ),
    "text_as_variables": (
        *(TYPE, "`variables` expected variables, a layer.*'dense'"),
        lambda: model("vectorized").compute_gradients(
            lambda x, y, sample_weight: x[:, 0], X, Y, variables="dense"
        ),
    ),
    # Models and steps
    "model_of_a_model": (
        *(TYPE, r"Received: Functional\. Write PerGradModel\.from_model\(mo"),
        lambda: kpg.PerGradModel(net()),
    ),
    "mode_of_a_model": (
        *(TYPE, r"Received: gradient_mode='vectorized'\. Give it to compile"),
        lambda: net(
            shape=(4,),
            cls=functools.partial(kpg.PerGradModel, gradient_mode="vectorized"),
        ),
    ),
    "mode_of_a_derived_model": (
        *(TYPE, r"Received: gradient_mode='vectorized'\. Give it to compile"),
        lambda: net(
            shape=(4,),
            cls=functools.partial(Derived, gradient_mode="vectorized"),
        ),
    ),
    "of_fit": (
        *(TYPE, r"fit\(\) expected .*mean 'batch_size'"),
        lambda: model().fit(X, Y, batchsize=4),
    ),
    "class_as_model": (
        *(
            TYPE,
            r"Received: the class WithoutCall; write WithoutCall\(\.\.\.\)",
        ),
        lambda: kpg.PerGradModel.from_model(WithoutCall),
    ),
    "nothing_to_train": (
        *(VALUE, "no trainable variables.*Set `trainable = True`"),
        lambda: norms(compiled(net(shape=(4,), units=None)), X, X),
    ),
    "model_of_layers": (
        *(TYPE, r"Received: list.*from_model\(keras\.Sequential\(layers\)\)"),
        lambda: kpg.PerGradModel([layers.Dense(3)]),
    ),
    "input_gradients_in_a_function": (
        *(VALUE, "Expected a call outside of it"),
        tf.function(lambda: kpg.input_gradients(model(), X), autograph=False),
    ),
    "check_in_a_function": (
        *(VALUE, "Expected a call outside of it.*leave out @tf.function"),
        tf.function(
            lambda: kpg.check_gradients(model(), X, Y), autograph=False
        ),
    ),
    "loss_fn": (
        TYPE,
        r"three arguments, loss_fn\(x, y, sample_weight\).*\(x, y\)\.",
        own_loss(lambda x, y: y),
    ),
    "no_loss_fn": (
        *(TYPE, "compute_gradients.*type ndarray"),
        lambda: model("vectorized").compute_gradients(X, Y),
    ),
    "no_loss": (
        *(VALUE, NO_LOSS),
        lambda: kpg.check_gradients(unbuilt(loss=None), X, Y, verbose=0),
    ),
    "no_loss_of_norms": (VALUE, NO_LOSS, lambda: norms(without_loss(), X, Y)),
    "no_loss_of_norms_one_by_one": (
        *(VALUE, NO_LOSS),
        lambda: kpg.per_sample_norms(without_loss(), X, Y, method="per_sample"),
    ),
    "no_loss_of_evaluate": (
        *(VALUE, NO_LOSS),
        lambda: without_loss().evaluate(X, Y, verbose=0),
    ),
    **{
        f"no_loss_of_fit_{mode}": (
            *(VALUE, NO_LOSS),
            lambda mode=mode: fit(without_loss(mode), X, Y),
        )
        for mode in ("batch", "vectorized", "per_sample", "accumulated")
    },
    "no_loss_of_microbatches": (
        *(VALUE, NO_LOSS),
        lambda: fit(without_loss(kpg.Accumulated(microbatch_size=2)), X, Y),
    ),
    "no_call": (
        *(VALUE, r"no call\(\).*compute_gradients"),
        lambda: kpg.per_sample_norms(without_call(), X, verbose=0),
    ),
    "parts_not_built": (
        *(VALUE, r"no call\(\).*'dense\w*'.*not\. Train it"),
        lambda: kpg.diagnose.predict_placement(without_call(), X, Y),
    ),
    "normalization_in_a_wrapper": (
        VALUE,
        r"layer 'inner' \(BatchNormalization\).*replace_batch_norm",
        lambda: fit(
            model(
                "vectorized",
                layers.Reshape((2, 2)),
                layers.TimeDistributed(layers.BatchNormalization(name="inner")),
                layers.Flatten(),
            ),
            *(X, Y),
        ),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_the_way_out(name):
    error, match, mistake = MISTAKES[name]
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
        misused_norms(loss=loss),
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
