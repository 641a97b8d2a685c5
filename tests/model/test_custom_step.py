"""A `train_step` of one's own that gets its gradients by the mode."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import assert_equal

layers = keras.layers
X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


class Plain(kpg.PerGradModel):
    """Ignores the mode."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data) - data) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class WithLogs(kpg.PerGradModel):
    """Adds to the ordinary step."""

    def train_step(self, data):
        return {**super().train_step(data), "more": 1.0}


class Helped(Plain):
    """Says that a helper asks for the gradients."""

    step_uses_gradient_mode = True

    def train_step(self, data):
        return self.update(data, data)

    def update(self, x, y):
        gradients, logs = self.compute_gradients(self.loss_of, x, y)
        self.optimizer.apply(gradients, self.trainable_variables)
        return logs

    def loss_of(self, x, y, sample_weight):
        return keras.losses.mean_squared_error(y, self(x))


def test_a_step_that_ignores_the_mode_is_refused():
    model = Plain()
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"Plain has a train_step of its own"):
        model.compile("sgd", gradient_mode=kpg.Vectorized())
    with pytest.raises(ValueError, match=r"self\.compute_gradients\(loss_fn"):
        model.compile("sgd", gradient_mode="per_sample")


@pytest.mark.parametrize(
    ("mode", "eagerly"),
    [("batch", False), ("vectorized", False), ("vectorized", True)],
)
def test_the_loss_of_an_epoch_is_in_the_logs(mode, eagerly):
    model = Helped()
    model.compile(
        keras.optimizers.SGD(0.0), gradient_mode=mode, run_eagerly=eagerly
    )
    logs = model.fit(X, batch_size=4, verbose=0).history
    # Batches of 4 and of 2.
    assert logs["loss"] == [pytest.approx(np.mean((model(X) - X) ** 2), 1e-5)]


def test_what_an_own_step_returns_is_what_is_logged():
    class Two(Plain):
        def train_step(self, data):
            return {**super().train_step(data), "more": 1.0}

    model = Two()
    model.compile(keras.optimizers.SGD(0.0))
    logs = model.fit(X, batch_size=6, verbose=0).history
    assert logs["loss"] == [pytest.approx(np.mean((model(X) - X) ** 2), 1e-5)]
    assert logs["more"] == [1.0]


@pytest.mark.parametrize("cls", [WithLogs, Helped])
def test_a_step_that_uses_the_mode_is_taken(cls):
    model = cls()
    model.compile("sgd", "mse", gradient_mode=kpg.Vectorized())
    assert model.gradient_mode.per_sample


class Adversarial(kpg.PerGradModel):
    """Two losses and two optimizers, with dropout in between."""

    def __init__(self, rate):
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((2,)), layers.Dense(4, "tanh")]
        )
        self.judge = keras.Sequential(
            [keras.Input((4,)), layers.Dropout(rate), layers.Dense(1)]
        )
        self.judge_optimizer = keras.optimizers.SGD(1.0)
        self.noise = keras.random.SeedGenerator(1)

    def call(self, x):
        return self.judge(x)

    def train_step(self, real):
        noise = keras.random.normal((tf.shape(real)[0], 2), seed=self.noise)

        def judge_loss(x, y, sample_weight):
            real, noise = x
            made = self.judge(self.generator(noise), training=True)
            right = self.judge(real, training=True)
            return tf.nn.softplus(made - right)[:, 0]

        def generator_loss(noise, y, sample_weight):
            return -self.judge(self.generator(noise), training=True)[:, 0]

        gradients, first = self.compute_gradients(
            judge_loss,
            (real, noise),
            variables=self.judge.trainable_variables,
            optimizer=self.judge_optimizer,
            name="judge",
        )
        self.judge_optimizer.apply(gradients, self.judge.trainable_variables)
        gradients, second = self.compute_gradients(
            generator_loss,
            noise,
            variables=self.generator.trainable_variables,
            name="generator",
        )
        self.optimizer.apply(gradients, self.generator.trainable_variables)
        return {**first, **second}


def trained(mode, rate=0.3, **how):
    keras.utils.set_random_seed(2)
    model = Adversarial(rate)
    model.compile(keras.optimizers.SGD(1.0), gradient_mode=mode, **how)
    before = model.get_weights()
    history = model.fit(X, batch_size=6, verbose=0, shuffle=False).history
    after = model.get_weights()
    return [b - a for a, b in zip(before, after)], history


@pytest.fixture(scope="module")
def by_keras():
    return trained("batch")


@pytest.mark.parametrize(
    ("mode", "eagerly"),
    [("vectorized", False), ("vectorized", True), ("per_sample", False)],
)
def test_two_losses_by_every_mode(mode, eagerly, by_keras):
    rate = 0.3
    if mode == "per_sample":  # Each sample has a dropout mask of its own.
        rate, by_keras = 0.0, trained("batch", 0.0)
    changes, history = trained(mode, rate, run_eagerly=eagerly)
    assert history.keys() == {"judge_loss", "generator_loss"}
    assert_equal(changes, by_keras[0], atol=1e-6)
    for name, right in by_keras[1].items():
        np.testing.assert_allclose(history[name], right, rtol=1e-5)


def test_each_loss_is_clipped():
    changes, history = trained(kpg.Vectorized(kpg.ClippedMean(1e-3)))
    moved = np.sqrt(sum((c**2).sum() for c in changes))
    assert 0 < moved <= np.sqrt(2) * 1.001e-3
    assert history["judge_clipped_fraction"] == [1.0]
    assert history["generator_clipped_fraction"] == [1.0]


class Distilled(kpg.PerGradModel):
    """A teacher's outputs come with the targets."""

    def __init__(self, teacher):
        super().__init__()
        self.student = layers.Dense(3, kernel_regularizer="l2")
        self.teacher = teacher

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        x, y = data

        def loss_fn(x, y, sample_weight):
            right, taught = y
            out = self.student(x)
            return keras.losses.mean_squared_error(
                right, out
            ) + keras.losses.mean_absolute_error(taught, out)

        gradients, logs = self.compute_gradients(
            loss_fn,
            x,
            (y, self.teacher(x)),
            variables=self.student,
        )
        self.optimizer.apply(gradients, self.student.trainable_variables)
        return logs


@pytest.mark.parametrize("loss_scale", [False, True])
def test_accumulated_with_regularizer_and_loss_scale(loss_scale):
    found = []
    for mode in ("batch", kpg.Accumulated(microbatch_size=4)):
        keras.utils.set_random_seed(3)
        teacher = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        model = Distilled(teacher)
        optimizer = keras.optimizers.SGD(0.1)
        if loss_scale:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(optimizer, gradient_mode=mode)
        history = model.fit(X, X[:, :3], batch_size=6, verbose=0).history
        assert history["loss"][0] > 0.1
        found.append([*model.student.get_weights(), history["loss"]])
    for right, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (lambda y: tf.reduce_mean(y), "one number for the batch"),
        (lambda y: y, r"losses of shape \(6, 4\)"),
        (lambda y: {"a": y}, "Received: a dict"),
    ],
)
def test_losses_of_another_shape_are_refused(losses, said):
    class Model(Helped):
        def loss_of(self, x, y, sample_weight):
            return losses(self(x))

    model = Model()
    model.compile("sgd", gradient_mode="vectorized", run_eagerly=True)
    with pytest.raises(ValueError, match=said):
        model.fit(X, verbose=0)


def test_modes_that_update_by_themselves_are_refused():
    model = Helped()
    for mode, expected in (
        (kpg.Accumulated(steps=2), r"Use Accumulated\(steps=1, [^']*\)\.$"),
        (kpg.PerSample(updates="sample"), r"Use PerSample\(updates='batch'\)"),
    ):
        model.compile("sgd", gradient_mode=mode)
        with pytest.raises(ValueError, match=r"calls the optimizer") as caught:
            model.fit(X, verbose=0)
        assert repr(mode) in str(caught.value)
        assert re.search(expected, str(caught.value))


class Around(kpg.PerGradModel):
    """Its `loss_fn` uses tensors that are no arguments of it."""

    def __init__(self, kind):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.kind = kind

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        outside = {"targets": y, "noise": tf.random.normal(tf.shape(y))}.get(
            self.kind, 0.0
        )

        def loss_fn(x, y, sample_weight):
            del sample_weight
            return keras.losses.mean_squared_error(y + outside, self(x))

        gradients, logs = self.compute_gradients(loss_fn, x, y)
        self.optimizer.apply(gradients, self.trainable_variables)
        return logs


@pytest.mark.parametrize("kind", ["targets", "noise", "nothing"])
@pytest.mark.parametrize("eager", [False, True])
def test_data_around_the_loss_function_are_named(kind, eager):
    model = Around(kind)
    mode = kpg.Accumulated(steps=1, microbatch_size=2)
    model.compile("sgd", gradient_mode=mode, run_eagerly=eager)
    x, y = np.ones((6, 4), "float32"), np.ones((6, 3), "float32")
    model(x)
    before = model.get_weights()
    if kind == "nothing":
        model.fit(x, y, batch_size=6, verbose=0)
        return
    match = r"not its arguments.*'outside' from outside.*\(loss_fn, \(x, n"
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, batch_size=6, verbose=0)
    assert_equal(before, model.get_weights())


@pytest.mark.quick
def test_a_users_own_tf_function_converts_the_loss_and_nothing_else(caplog):
    """AutoGraph takes the `if` of a tensor, and leaves the package alone."""
    model = kpg.PerGradModel(
        inputs := keras.Input((4,)), keras.layers.Dense(1)(inputs)
    )
    model.compile("sgd", gradient_mode=kpg.Vectorized(kpg.ClippedMean(1.0)))
    x, y = np.eye(4, dtype="float32"), np.ones((4, 1), "float32")

    def step(x, y):
        def loss_fn(x, y, sample_weight):
            difference = y - model(x, training=True)
            if tf.constant(True):
                difference *= 2.0
            return difference[:, 0] ** 2

        gradients, _ = model.compute_gradients(loss_fn, x, y)
        return gradients

    with pytest.raises(Exception, match="AutoGraph"):
        tf.function(step, autograph=False)(x, y)
    compiled = tf.function(step)(x, y)
    assert "AutoGraph could not transform" not in caplog.text

    def loss_fn(x, y, sample_weight):
        return (2.0 * (y - model(x, training=True)))[:, 0] ** 2

    eager, _ = model.compute_gradients(loss_fn, x, y)
    assert_equal(compiled, eager, rtol=1e-5)


def test_the_functions_say_what_to_use_inside_a_tf_function():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.eye(4), np.ones((4, 1))
    for function in (
        kpg.per_sample_gradients,
        kpg.per_sample_norms,
        kpg.gradient_statistics,
    ):
        with pytest.raises(ValueError, match="compute_gradients"):
            tf.function(lambda x, y, f=function: f(model, x, y))(x, y)


# Mistakes in the user's own code.


class Mistaken(layers.Layer):
    """Names an attribute that it has not."""

    def call(self, x):
        return x * self.missing


class Calling(kpg.PerGradModel):
    """A model that is built by its first call."""

    def __init__(self):
        super().__init__()
        self.mistaken = Mistaken()

    def call(self, x):
        return self.mistaken(x)


@pytest.mark.parametrize("mode", ["batch", "vectorized", "per_sample"])
def test_the_users_own_line_comes_last(mode):
    """Not Keras's error about a model that cannot be built."""
    model = Calling()
    model.compile("sgd", "mse", gradient_mode=mode)
    with pytest.raises(AttributeError, match="no attribute 'missing'") as info:
        model.fit(X, X, verbose=0)
    assert (
        str(info.traceback[-1].statement).strip() == "return x * self.missing"
    )
    assert info.value.__cause__ is None
