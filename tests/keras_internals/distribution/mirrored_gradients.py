"""MirroredStrategy: the gradient of every mode is that of one device."""

import tempfile

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from tests.keras_internals.distribution.two_devices import (
    X,
    Y,
    assert_equal_copies,
    both,
    check,
    clipped,
    dense,
    double,
    same,
    strategy,
)
from tests.modes import big_batch
from tests.multitask import task_networks


@check
def batch():
    same("outputs-mixed", kpg.Batch)


@check
def vectorized_clipped_with_statistics():
    same(
        "masked-mean_with_sample_weight-weighted",
        lambda: kpg.Vectorized(clipped(), statistics=True),
    )


@check
def vectorized_with_statistics():
    same("outputs-means", lambda: kpg.Vectorized(statistics=True))


@check
def statistics_for_a_callback():
    """Watched without being asked to log them."""
    double()
    names = ("gradient_norm", "gradient_variance", "gradient_noise_scale")

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.watching = self.model.watch_gradients()
            self.watching.__enter__()

        def on_train_end(self, logs=None):
            self.watching.__exit__(None, None, None)

    def run():
        found = []
        for mode in (kpg.Vectorized(), kpg.PerSample(clipped())):
            model = dense(mode)
            history = model.fit(
                *(X, Y), 11, verbose=0, shuffle=False, callbacks=[Watch()]
            )
            found += [history.history[name][-1] for name in names]
        return found

    alone, together = both(run)
    np.testing.assert_allclose(together, alone, rtol=1e-10)


@check
def per_sample():
    same("class_weight", kpg.PerSample)


@check
def per_sample_clipped_with_statistics():
    same("added", lambda: kpg.PerSample(clipped(), statistics=True))


@check
def accumulated():
    same("added-weighted", lambda: kpg.Accumulated(microbatch_size=2))


@check
def accumulated_over_steps_with_a_tail():
    same("outputs-mixed", lambda: kpg.Accumulated(steps=2, microbatch_size=2))


def same_by_task(case, around=lambda mode: mode):
    """Asserts that ByTask trains a case as on one device, at 1e-10."""
    double()

    def train():
        mode = around(task_networks.CASES[case].mode())
        sizes = (11, 11, 1)
        return task_networks.trained(case, mode, sizes, jit_compile=False)

    alone, together = both(train)
    big_batch.assert_same(together, alone)


@check
def by_task():
    same_by_task("kinds")


@check
def by_task_of_masked_losses():
    same_by_task("masked")


@check
def by_task_in_microbatches_with_a_task_of_add_loss():
    same_by_task(
        "add_loss", lambda mode: kpg.Accumulated(microbatch_size=2, inner=mode)
    )


@check
def by_task_over_steps_with_a_tail():
    same_by_task(
        "kinds",
        lambda mode: kpg.Accumulated(steps=2, microbatch_size=2, inner=mode),
    )


@check
def by_task_with_synchronized_statistics():
    def train(mode, regularizer=None):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((5,))
        x = keras.layers.Dense(4, activity_regularizer=regularizer)(inputs)
        x = keras.layers.BatchNormalization(synchronized=True)(x)
        heads = [keras.layers.Dense(3, name=n)(x) for n in "ab"]
        model = kpg.PerGradModel(inputs, heads)
        model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
        model.fit(X, [Y, -Y], 11, verbose=0, shuffle=False)
        return model.get_weights()

    with strategy().scope():
        for regularizer in (None, "l2"):
            plain = train("batch", regularizer)
            by_task = train(kpg.ByTask("mean"), regularizer)
            for a, b in zip(by_task, plain, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class Sign(kpg.Vectorized):
    """Uses the gradient of all replicas."""

    def step(self, *batch):
        step = super().step(*batch)
        step.gradients = [tf.sign(g) for g in step.gradients]
        return step


class Own(kpg.modes.GradientMode):
    """Leaves the sum over the replicas to Keras, as train steps do."""

    def step(self, model, x, y, sample_weight):
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(x, y, y_pred, sample_weight)
        gradients = tape.gradient(loss, model.trainable_variables)
        return kpg.modes.Step(loss, y_pred, gradients)


@check
def modes_of_ones_own():
    for mode in (Sign, Own):

        def train(mode=mode):
            model = dense(mode(), metrics=["mae"])
            history = model.fit(
                X[:20], Y[:20], batch_size=10, verbose=0, shuffle=False
            )
            return model.get_weights(), history.history

        alone, together = both(train)
        big_batch.assert_same(together, alone, rtol=1e-5, atol=1e-6)


@check
def accumulated_clipped():
    inner = kpg.Vectorized
    same(
        "masked-sum_over_batch_size-weighted",
        lambda: kpg.Accumulated(microbatch_size=2, inner=inner(clipped())),
    )


@check
def gradients_of_inputs():
    """Of the outputs and of the loss, inside and outside of the scope."""
    double()
    models = []

    def gradients(model):
        of_outputs = kpg.input_gradients(model, X, batch_size=5, verbose=0)
        return of_outputs, kpg.input_gradients(model, X, y=Y, verbose=0)

    def run():
        models.append(dense("batch"))
        models[-1].fit(X, Y, 11, verbose=0, shuffle=False)
        return gradients(models[-1])

    alone, together = both(run)
    for found in (together, gradients(models[1])):
        for a, b in zip(found, alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


@check
def eager():
    mode = lambda: kpg.Accumulated(  # noqa: E731
        steps=2, microbatch_size=4, inner=kpg.Vectorized(clipped())
    )
    same("sum_over_batch_size-weighted", mode, run_eagerly=True)


@check
def optimizer_sees_the_whole_gradient():
    """Keras clips each replica's part; here it is the sum, as on one device."""

    def optimizer():
        return keras.optimizers.Adam(
            0.1, global_clipnorm=0.05, weight_decay=0.01, use_ema=True
        )

    same("sum_over_batch_size-weighted", kpg.Vectorized, optimizer)


@check
def noise_is_that_of_one_device():
    same(
        "sum_over_batch_size-weighted",
        lambda: kpg.Vectorized(clipped(noise_multiplier=0.5, seed=3)),
    )


@check
def noise_is_added_once():
    """From a generator of its own in each replica: none is in the scope."""
    noisy = kpg.Vectorized(clipped(noise_multiplier=50.0))
    weights = {}
    for name, mode in (
        ("noisy", noisy),
        ("plain", kpg.Vectorized(clipped())),
    ):
        keras.utils.set_random_seed(3)
        with strategy().scope():
            inputs = keras.Input((5,))
            hidden = keras.layers.Dense(500)(inputs)
            model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(hidden))
            optimizer = keras.optimizers.SGD(1.0)
            model.compile(
                optimizer, "mse", gradient_mode=mode, jit_compile=False
            )
        model.fit(X[:5], Y[:5], batch_size=5, verbose=0, shuffle=False)
        assert_equal_copies(model)
        weights[name] = model.get_weights()
    noise = np.concatenate(
        [(a - b).ravel() for a, b in zip(weights["noisy"], weights["plain"])]
    )
    # 4503 numbers: their deviation is known to about 1 %.
    np.testing.assert_allclose(np.std(noise), 50.0 * 0.3 / 5, rtol=0.05)


@check
def overflow_on_one_replica():
    keras.config.set_dtype_policy("mixed_float16")
    x = X.copy()
    x[9] = 1e6  # In the second replica's part of the first batch.
    scales = []

    def train():
        model = dense(kpg.Vectorized(statistics=True))
        model.fit(x, Y, batch_size=11, epochs=1, verbose=0, shuffle=False)
        scales.append(float(np.asarray(model.optimizer.dynamic_scale)))
        assert int(np.asarray(model.optimizer.inner_optimizer.iterations)) == 2
        return model.get_weights()

    alone, together = both(train)
    assert scales[0] == scales[1] == 2.0**14
    for a, b in zip(together, alone):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@check
def noise_from_outside_of_the_scope_goes_on_after_a_restart():
    modes = [
        kpg.Vectorized(clipped(noise_multiplier=0.5, seed=3)) for _ in range(2)
    ]

    def train():
        model = dense(modes.pop())
        arguments = {"batch_size": 11, "verbose": 0, "shuffle": False}
        model.fit(X, Y, **arguments)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            again = keras.saving.load_model(f"{folder}/model.keras")
        for each in (model, again):
            each.fit(X, Y, **arguments)
        for a, b in zip(again.get_weights(), model.get_weights()):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
        return again.get_weights(), {}

    alone, together = both(train)
    big_batch.assert_same(together, alone, rtol=1e-5, atol=1e-6)


@check
def sums_in_add_loss_behind_zeros():
    """The first samples of each replica add nothing."""
    x, y = np.tile(X[:20], (2, 1)), np.tile(Y[:20], (2, 1))
    x[:10] = x[20:30] = 0

    def make(cls):
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(4, activation="relu")(inputs)
        return cls(inputs, keras.layers.Dense(3)(big_batch.Added()(hidden)))

    for mode in ("batch", kpg.Accumulated(microbatch_size=4)):

        def train(mode=mode):
            model = dense(mode, make=make)
            history = model.fit(x, y, batch_size=40, verbose=0, shuffle=False)
            return model.get_weights(), history.history

        alone, together = both(train)
        big_batch.assert_same(together, alone, rtol=1e-5, atol=1e-6)
