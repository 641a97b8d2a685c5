"""What breaks privacy is named before any weight changes."""

import sys

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.privacy import tiny
from tests.privacy.tiny import N, X, Y, fit, fitted, model, private, refused

layers, callbacks = keras.layers, keras.callbacks
SGD = keras.optimizers.SGD
crossentropy = keras.losses.BinaryCrossentropy
OTHER = private(batch_size=5)


class AddsSum(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(keras.ops.square(x)))
        return x


class OwnStep(kpg.PerGradModel):
    def train_step(self, data):
        return super().train_step(data)


def coarse(training):
    keras.config.set_dtype_policy("bfloat16")
    return model(training)


def joining_batches(training):
    net, inner = model(training), training.gradient_mode
    mode = kpg.Accumulated(steps=2, inner=inner)
    net.compile("sgd", "binary_crossentropy", gradient_mode=mode)
    return net


def changed_behind(name, value):
    def make(training):
        net = model(training)
        setattr(net.gradient_mode.aggregation.clipping, name, value)
        return net

    return make


joining = {"gradient_accumulation_steps": 2}
by_weight = crossentropy(reduction="mean_with_sample_weight")
centred = layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0))
masking = [layers.Reshape((3, 1)), layers.Masking()]
scaled = keras.optimizers.LossScaleOptimizer
#: A part of the message; the arguments of `model`, or a function of the
#: training that makes one.
MODELS = [
    ("kpg.replace_batch_norm", {"parts": [layers.BatchNormalization()]}),
    # Nobody is sent to a mode without privacy.
    (
        r"(?s)mixes the samples.*on each sample alone\. The op is made in .*$",
        {"parts": [centred]},
    ),
    ("is a sum over the batch", {"loss": crossentropy(reduction="sum")}),
    ("a mask or by weights of all", {"loss": by_weight}),
    ("divided by a mask", {"parts": masking, "loss": "mse"}),
    (r"add_loss\(\) is a sum over", {"parts": [AddsSum()]}),
    ("LossScaleOptimizer", lambda given: model(given, scaled(SGD()))),
    ("joins the gradients", lambda given: model(given, SGD(**joining))),
    ("which noise is too coarse", coarse),
    ("has a custom train_step", {"cls": OwnStep}),
    ("joins several batches", joining_batches),
    ("not what is accounted for", changed_behind("clip_norm", 5.0)),
    ("not what is accounted for", changed_behind("noise_multiplier", 0.5)),
]
best = callbacks.ModelCheckpoint("x.keras", "loss", save_best_only=True)
#: A part of the message, and an argument of `fit`.
FITS = [
    ("Split them", "validation_split", 0.1),
    ("`batch_size` is set by", "batch_size", 5),
    ("`steps_per_epoch` is set", "steps_per_epoch", 2),
    ("different PrivateTrainings", "data", OTHER.batches(X, Y)),
    ("callback enforces the budget", "callbacks", [OTHER.callback]),
    ("Stopping acts on 'loss'", "callbacks", [callbacks.EarlyStopping("loss")]),
    ("on 'accuracy'", "callbacks", [callbacks.ReduceLROnPlateau("accuracy")]),
    ("ModelCheckpoint acts", "callbacks", [best]),
    ("TerminateOnNaN acts", "callbacks", [callbacks.TerminateOnNaN()]),
]


def check_refused(match, net, training, **arguments):
    with refused(net, match):
        fit(net, training, **arguments)
    assert net.aggregation_state.updates == 0


@pytest.mark.parametrize(("match", "make"), MODELS)
def test_models_are_refused_before_a_weight_changes(training, match, make):
    net = make(training) if callable(make) else model(training, **make)
    check_refused(match, net, training)


@pytest.mark.parametrize(("match", "name", "value"), FITS)
def test_arguments_of_fit_are_refused(training, net, match, *, name, value):
    check_refused(match, net, training, **{name: value})


def test_fit_without_the_batches_or_the_callback_is_refused(training, net):
    data = training.batches(X, Y)
    with refused(net, r"Expected fit\(private.batches"):
        net.fit(X, Y, callbacks=[training.callback], verbose=0)
    for budgets in ([], [OTHER.callback]):
        with refused(net, "callback enforces the budget"):
            net.fit(data, callbacks=budgets, verbose=0)
    assert net.aggregation_state.updates == 0


def test_mixed_bfloat16_is_served():
    keras.config.set_dtype_policy("mixed_bfloat16")
    net = fitted(private())
    assert {v.dtype for v in net.trainable_variables} == {"float32"}


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="older Keras"
)
@pytest.mark.parametrize("is_function", [False, True])
def test_optimizers_inside_others(training, is_function):
    from keras.src.optimizers.multi_optimizer import OptimizerMap

    def several(**arguments):
        plain, other = SGD(0.1), SGD(0.1, **arguments)
        if not is_function:
            pairs = OptimizerMap(plain, {".*bias": other})
        else:
            pairs = lambda v: other if "bias" in v.path else plain  # noqa: E731
        return keras.optimizers.MultiOptimizer(pairs)

    net = model(training, several(**joining))
    with refused(net, "joins the gradients"):
        fit(net, training)
    net = fitted(training, several())
    assert net.aggregation_state.updates == 4


def test_validation_beside_the_protected_examples_is_served(training, net):
    """And callbacks may act on it."""
    x, y = np.concatenate([X, X]), np.concatenate([Y, Y])
    stop = callbacks.EarlyStopping("val_loss")
    for rows, rest in (
        (slice(None, N), slice(N, None)),
        (slice(None, None, 2), slice(1, None, 2)),
    ):
        data, beside = training.batches(x[rows], y[rows]), (x[rest], y[rest])
        fit(net, training, 1, [stop], data, validation_data=beside)
    fit(net, training, 1, [kpg.callbacks.GradientVariance(beside)], data)
    for given in ((X, Y), (X[20:], Y[20:])):
        with pytest.warns(UserWarning, match="are the protected examples"):
            fit(net, training, validation_data=given)
    for given in ((X[20:], Y[20:]), None):
        probe = kpg.callbacks.GradientVariance(given)
        with pytest.warns(UserWarning, match="probe of Grad.* has the protec"):
            fit(net, training, 1, [probe])


def test_warnings():
    training = private(user_ids=None)
    with pytest.warns(UserWarning, match="guarantee is for one example"):
        assert training.callback
    plan = {"noise_multiplier": 1.0, "samples": N, "batch_size": 10}
    for delta in (0.1, 1 / N):
        said = f"below 1 / samples.*Received: delta={delta}.*or less"
        with pytest.warns(UserWarning, match=said) as found:
            kpg.PrivateTraining(delta=delta, **plan)
        assert found[0].filename == __file__
    kpg.PrivateTraining(delta=0.9 / N, **plan)  # a warning is an error here
    weights = np.linspace(0, 1, N)
    with pytest.warns(UserWarning, match="divided by their sum"):
        private().batches(X, Y, weights / weights.mean())


USERS = {"user_ids": np.arange(N), "samples_per_user": 2}
BANDED = {"noise": "correlated", "bands": 2, "steps": 16}
ADAPTIVE = {"clipping": kpg.privacy.AdaptiveClippedMean()}
falling = keras.optimizers.schedules.CosineDecay(2.0, 10)
noisy = kpg.ClippedMean(1.0, noise_multiplier=2.0)


class NoClip(kpg.ClippedMean):
    def weights(self, norms):
        return keras.ops.ones_like(norms)


impostor = type("ClippedMean", (NoClip,), {})(1.0)
IMPOSTOR = {"clipping": impostor, "vouched": ["ClippedMean"]}
#: A part of the message, and arguments of `PrivateTraining`.
ARGUMENTS = [
    ("`sampling` expected one of", {"sampling": "random"}),
    ("at most the number of examples", {"batch_size": 41}),
    ("without noise nothing is private", {"noise_multiplier": 0}),
    ("Expected `target_epsilon` with", {"noise_multiplier": None}),
    ("`target_epsilon` expected a positive", {"target_epsilon": -1}),
    ("not enough for one step", {"target_epsilon": 1e-3}),
    ("`delta` expected a number between", {"delta": 0}),
    ("Expected `epochs` or `steps`", {"epochs": 1, "steps": 1}),
    ("`method` expected one of", {"method": "batch"}),
    ("`clip_norm` must be finite", {"clip_norm": float("inf")}),
    ("Expected `clip_norm` or `clipping`", {"clip_norm": 1, "clipping": noisy}),
    ("PrivateTraining gives it", {"clipping": noisy}),
    ("proves that NoClip .* vouched=..NoClip", {"clipping": NoClip(1.0)}),
    ("proves that ClippedMean .* name must differ", IMPOSTOR),
    ("must be a ClippedMean", {"clipping": kpg.aggregations.UPGrad()}),
    ("`user_ids`, one for each example, together", {"user_ids": "same"}),
    ("Expected 40 `user", {"user_ids": [1, 2], "samples_per_user": 1}),
    ("only sampling='poisson'", {**USERS, "sampling": "fixed"}),
    ("`continue_from` must be a model that was trained", {"continue_from": 5}),
    ("together with `augment`", {**tiny.VIEWS, "augmentations": None}),
    ("augmentations=3, augment=None", {**tiny.VIEWS, "augment": None}),
    ("`augmentations`", {**tiny.VIEWS, "augmentations": 0}),
    ("keras layer, or a function", {**tiny.VIEWS, "augment": 5}),
    ("`noise` expected one of", {"noise": "red"}),
    ("noise='correlated' with them", {"bands": 2}),
    ("noise='correlated' with them", {"earlier_noise": "redrawn"}),
    ("sampling='poisson', or noise='correlated'", {"sampling": "cyclic"}),
    ("sampling='cyclic' or 'ordered'", {**BANDED, "sampling": "poisson"}),
    ("Expected sampling='ordered'", {**BANDED, "earlier_noise": "redrawn"}),
    ("`earlier_noise` expected one of", {**BANDED, "earlier_noise": "lost"}),
    ("`bands` up to 4", {**BANDED, "bands": 5}),
    ("`bands`", {**BANDED, "bands": 0}),
    ("Expected `bands`, or `target_epsilon`", {**BANDED, "bands": None}),
    ("Expected `epochs` or `steps`", {**BANDED, "steps": None}),
    ("ClippedMean or an AutomaticClippedMean", {**BANDED, **ADAPTIVE}),
    ("one multiplier for all steps", {**BANDED, "noise_multiplier": falling}),
    ("only sampling='poisson'", {**BANDED, **USERS}),
]


@pytest.mark.parametrize(("match", "arguments"), ARGUMENTS)
def test_arguments(match, arguments):
    error = TypeError if "function" in match else ValueError
    with pytest.raises(error, match=match):
        private(**arguments)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"keras-pergrad\[privacy\]"):
        private()


def test_the_object_in_the_place_of_its_mode_is_explained():
    net = kpg.PerGradModel()
    with pytest.raises(
        TypeError, match=r"PrivateTraining; .*private\.gradient_mode"
    ):
        net.compile("sgd", gradient_mode=private())
