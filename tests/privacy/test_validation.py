"""What breaks privacy is named before any weight changes."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.privacy.tiny import N, X, Y, compile_privately, fit, model, private

layers, callbacks = keras.layers, keras.callbacks


def refused(match, net, training, **arguments):
    before = net.get_weights()
    with pytest.raises(ValueError, match=match):
        fit(net, training, **arguments)
    for a, b in zip(net.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert net.aggregation_state.updates == 0


def with_layer(layer, training, **arguments):
    inputs = keras.Input((3,))
    x = layers.Dense(4)(inputs)
    outputs = layers.Dense(1, activation="sigmoid")(layer(x))
    net = kpg.PerGradModel(inputs, outputs)
    compile_privately(net, training, **arguments)
    return net


class KeepsMean(layers.Layer):
    """A layer with a moving average of its own."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, 0))
        return x


def adapted(name):
    layer = layers.Normalization(name=name)
    layer.adapt(X @ np.ones((3, 4), "float32"))
    return layer


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (layers.BatchNormalization, "Use kpg.replace_batch_norm"),
        (KeepsMean, "assigns 'keeps_mean/variable'"),
        (lambda: adapted("scaled"), r"public_layers=\['scaled'\]"),
    ],
)
def test_layers(make, match):
    training = private()
    refused(match, with_layer(make(), training), training)


def test_a_layer_that_mixes_is_not_sent_to_a_mode_without_privacy():
    training = private()
    centred = layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0))
    net = with_layer(centred, training)
    refused(r"(?s)mixes the samples.*on each sample alone\.$", net, training)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.BatchNormalization(trainable=False),
        lambda: layers.Normalization(mean=0.5, variance=2.0),
        lambda: adapted("open"),
        lambda: layers.Dropout(0.5),
        lambda: layers.SpectralNormalization(layers.Dense(4)),
    ],
)
def test_sound_layers_are_not_accused(make):
    from keras_pergrad.privacy.model_check import find_problems

    training = private()
    net = with_layer(make(), training)
    assert find_problems(net, training.batches(X, Y), ["open"]) == []


class AddsLoss(layers.Layer):
    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def call(self, x):
        self.add_loss(self.reduce(keras.ops.square(x)))
        return x


def test_losses():
    training = private()
    summed = keras.losses.BinaryCrossentropy(reduction="sum")
    refused(r"is a sum over the batch", model(training, loss=summed), training)
    by_weight = keras.losses.BinaryCrossentropy(
        reduction="mean_with_sample_weight"
    )
    refused(
        "by a mask or by weights of all",
        model(training, loss=by_weight),
        training,
    )
    net = with_layer(AddsLoss(keras.ops.sum), training)
    refused(r"add_loss\(\) is a sum over the batch", net, training)
    from keras_pergrad.privacy.model_check import find_problems

    net = with_layer(AddsLoss(keras.ops.mean), training)
    assert find_problems(net, training.batches(X, Y)) == []


def test_masks():
    training = private()
    inputs = keras.Input((3,))
    x = layers.Embedding(5, 2, mask_zero=True)(inputs)
    net = kpg.PerGradModel(inputs, layers.Dense(1)(x))
    compile_privately(net, training, loss="mse")
    ids = (np.abs(X) * 2).astype("int32").clip(0, 4)
    data = training.batches(ids, np.zeros((N, 3, 1), "float32"))
    refused("divided by a mask", net, training, data=data)


def test_optimizers_and_formats():
    training = private()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    refused("LossScaleOptimizer", model(training, scaled), training)
    joins = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    refused("joins the gradients", model(training, joins), training)
    keras.config.set_dtype_policy("bfloat16")
    refused("which noise is too coarse", model(training), training)
    keras.config.set_dtype_policy("mixed_bfloat16")
    net = model(training)
    fit(net, training)
    assert {v.dtype for v in net.trainable_variables} == {"float32"}


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="older Keras"
)
@pytest.mark.parametrize("is_function", [False, True])
def test_optimizers_inside_others(is_function):
    from keras.src.optimizers.multi_optimizer import OptimizerMap

    def several(**arguments):
        plain = keras.optimizers.SGD(0.1)
        joins = keras.optimizers.SGD(0.1, **arguments)
        if not is_function:
            return OptimizerMap(plain, {".*bias": joins})
        return lambda v: joins if "bias" in v.path else plain

    training = private()
    kind = keras.optimizers.MultiOptimizer
    joins = kind(several(gradient_accumulation_steps=2))
    refused("joins the gradients", model(training, joins), training)
    net = model(training, kind(several()))
    fit(net, training)
    assert net.aggregation_state.updates == 4


def test_steps_of_ones_own():
    class Own(kpg.PerGradModel):
        def train_step(self, data):
            return super().train_step(data)

    training = private()
    inputs = keras.Input((3,))
    net = Own(inputs, layers.Dense(1, activation="sigmoid")(inputs))
    compile_privately(net, training)
    refused("has a train_step of its own", net, training)
    inner = training.gradient_mode
    net = model(training)
    net.compile(
        "sgd",
        "binary_crossentropy",
        gradient_mode=kpg.Accumulated(steps=2, inner=inner),
    )
    refused("joins several batches", net, training)


def test_arguments_of_fit():
    training = private()
    net = model(training)
    with pytest.raises(ValueError, match=r"Expected fit\(private.batches"):
        net.fit(X, Y, callbacks=[training.callback])
    refused("Split them", net, training, validation_split=0.1)
    refused("`batch_size` is that of", net, training, batch_size=5)
    refused("`steps_per_epoch` is that", net, training, steps_per_epoch=2)
    other = private(batch_size=5)
    refused(
        "of another PrivateTraining", net, training, data=other.batches(X, Y)
    )
    with pytest.raises(ValueError, match="kept by a callback"):
        net.fit(training.batches(X, Y), verbose=0)
    with pytest.raises(ValueError, match="kept by a callback"):
        fit(net, training, callbacks=[other.callback])


@pytest.mark.parametrize(
    ("callback", "match"),
    [
        (callbacks.EarlyStopping("loss"), "EarlyStopping acts on 'loss'"),
        (callbacks.ReduceLROnPlateau("accuracy"), "acts on 'accuracy'"),
        (
            callbacks.ModelCheckpoint("x.keras", "loss", save_best_only=True),
            "ModelCheckpoint acts",
        ),
        (callbacks.TerminateOnNaN(), "TerminateOnNaN acts"),
    ],
)
def test_callbacks_that_act_on_training_data(callback, match):
    training = private()
    refused(match, model(training), training, callbacks=[callback])


def test_callbacks_that_act_on_other_data_are_served():
    training = private()
    net = model(training)
    stop = callbacks.EarlyStopping("val_loss")
    other = X[:4].copy(), Y[:4].copy()
    fit(net, training, callbacks=[stop], validation_data=other)
    for given in ((X, Y), (X[20:], Y[20:])):
        with pytest.warns(UserWarning, match="are the protected examples"):
            fit(net, training, validation_data=given)


def test_validation_examples_beside_the_protected_ones_are_served():
    x, y = np.concatenate([X, X]), np.concatenate([Y, Y])
    training = private()
    for rows in (slice(None, N), slice(None, None, 2)):
        rest = slice(N, None) if rows.step is None else slice(1, None, 2)
        fit(
            model(training),
            training,
            data=training.batches(x[rows], y[rows]),
            validation_data=(x[rest], y[rest]),
        )


def test_what_is_changed_behind_its_back():
    training = private()
    net = model(training)
    clipping = net.gradient_mode.aggregation.clipping
    clipping.clip_norm = 5.0
    refused("not what is accounted for", net, training)
    clipping.clip_norm = 1.0
    clipping.noise_multiplier = 0.5
    refused("not what is accounted for", net, training)


def test_warnings():
    training = private(user_ids=None)
    with pytest.warns(UserWarning, match="guarantee is for one example"):
        assert training.callback
    with pytest.warns(UserWarning, match="more than 1 / samples") as found:
        kpg.PrivateTraining(
            noise_multiplier=1.0, delta=0.1, samples=N, batch_size=10
        )
    assert found[0].filename == __file__
    weights = np.linspace(0, 1, N)
    with pytest.warns(UserWarning, match="divided by their sum"):
        private().batches(X, Y, weights / weights.mean())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"sampling": "random"}, "`sampling` must be one of"),
        ({"batch_size": 41}, "at most the number of examples"),
        ({"noise_multiplier": 0}, "without noise nothing is private"),
        ({"noise_multiplier": None}, "Expected `target_epsilon` with"),
        ({"target_epsilon": -1}, "`target_epsilon` must be a positive"),
        ({"target_epsilon": 1e-3}, "not enough for one step"),
        ({"delta": 0}, "`delta` must be a number between"),
        ({"epochs": 1, "steps": 1}, "Expected `epochs` or `steps`"),
        ({"method": "batch"}, "`method` must be one of"),
        ({"clip_norm": float("inf")}, "`clip_norm` must be finite"),
        (
            {"clip_norm": 1.0, "clipping": kpg.ClippedMean(1.0)},
            "Expected `clip_norm` or `clipping`",
        ),
        (
            {"clipping": kpg.ClippedMean(1.0, noise_multiplier=2.0)},
            "PrivateTraining gives it",
        ),
        ({"user_ids": "same"}, "`user_ids`, one for each example, together"),
        ({"user_ids": [1, 2], "samples_per_user": 1}, "Expected 40 `user"),
        (
            {
                "user_ids": np.arange(N),
                "samples_per_user": 2,
                "sampling": "fixed",
            },
            "only sampling='poisson'",
        ),
        (
            {"continue_from": "model"},
            "`continue_from` must be a model that was trained",
        ),
    ],
)
def test_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        private(**arguments)


def test_without_the_library(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"keras-pergrad\[privacy\]"):
        private()


def test_the_object_in_the_place_of_its_mode_is_explained():
    net = kpg.PerGradModel()
    with pytest.raises(
        TypeError, match=r"PrivateTraining; .*private\.gradient_mode"
    ):
        net.compile("sgd", gradient_mode=private())
