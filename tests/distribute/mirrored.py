"""What holds under MirroredStrategy on two devices; run by test_mirrored.

A process of its own, since the devices of one are fixed when TensorFlow
starts. The global batches are of 11, 11 and 1 samples: the replicas have 6
and 5 of them, and in the end 1 and none.
"""

import contextlib
import functools
import json
import math
import tempfile
import traceback
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import zoo
from tests.modes import big_batch

CHECKS = {}
X, Y = (a.astype("float32") for a in (big_batch.X, big_batch.TARGETS))


def check(function):
    CHECKS[function.__name__] = function
    return function


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    results = {}
    for name, function in CHECKS.items():
        keras.backend.clear_session()
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
        keras.utils.set_random_seed(7)
        try:
            function()
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()[-3000:]
    print(json.dumps(results))


@functools.cache
def strategy():
    # One for all: TensorFlow numbers the messages of each from the start.
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def clipped(**arguments):
    return kpg.ClippedMean(0.3, **arguments)


def double():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


def both(function):
    """What `function()` returns without and with a strategy, same seed."""
    results = []
    for scope in (contextlib.nullcontext(), strategy().scope()):
        keras.utils.set_random_seed(3)
        with scope:
            results.append(function())
    return results


def same(case, mode, optimizer=None, **arguments):
    """Asserts equal weights and history after training a case, at 1e-10."""
    double()

    def train():
        return big_batch.train(
            case,
            kpg.PerGradModel,
            gradient_mode=mode(),
            optimizer=optimizer and optimizer(),
            batch_size=11,
            **{"jit_compile": False, **arguments},
        )

    alone, together = both(train)
    big_batch.assert_same(together, alone)


def dense(mode, loss="mse", optimizer="sgd", make=big_batch.dense, **arguments):
    model = make(kpg.PerGradModel)
    model.compile(
        optimizer, loss, gradient_mode=mode, jit_compile=False, **arguments
    )
    return model


def copies(model):
    """The values of all weights on each replica."""
    values = [
        model.distribute_strategy.experimental_local_results(v.value)
        for v in model.variables
    ]
    return [[np.asarray(v) for v in part] for part in zip(*values)]


def assert_equal_copies(model):
    first, second = copies(model)
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def raises(function, *words):
    with pytest.raises(ValueError) as error:
        function()
    for word in words:
        assert word in str(error.value), str(error.value)


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


@check
def what_waits_for_an_update_is_saved_for_all():
    def train():
        model = dense(kpg.Accumulated(steps=2, tail="keep"))
        arguments = {"batch_size": 11, "verbose": 0, "shuffle": False}
        model.fit(X, Y, **arguments)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            again = keras.saving.load_model(f"{folder}/model.keras")
        again.fit(X, Y, **arguments)
        assert not again.gradient_state.waiting
        return again

    alone, together = both(train)
    assert_equal_copies(together)
    big_batch.assert_same(
        (together.get_weights(), {}),
        (alone.get_weights(), {}),
        rtol=1e-5,
        atol=1e-6,
    )


class Sign(kpg.Vectorized):
    """Uses the gradient of all replicas."""

    def step(self, *batch):
        step = super().step(*batch)
        step.gradients = [tf.sign(g) for g in step.gradients]
        return step


class Own(kpg.GradientMode):
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
def subclassed_and_built_late():
    x, y, weights = zoo.data(13)

    def train():
        model = zoo.subclassed(kpg.PerGradModel)
        model.compile(
            "sgd",
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            gradient_mode=kpg.Vectorized(clipped()),
        )
        history = model.fit(
            x,
            y,
            sample_weight=weights,
            batch_size=6,
            epochs=2,
            verbose=0,
            shuffle=False,
        )
        return model.get_weights(), history.history

    alone, together = both(train)
    big_batch.assert_same(together, alone, rtol=1e-4, atol=1e-6)


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
def evaluate_predict_save_and_load():
    def run():
        model = dense(
            kpg.Vectorized(clipped(), statistics=True), metrics=["mae"]
        )
        arguments = {"batch_size": 11, "verbose": 0}
        results = [model.evaluate(X, Y, **arguments)]
        history = model.fit(
            X, Y, **arguments, shuffle=False, validation_data=(X, Y)
        )
        results += [v[-1] for v in history.history.values()]
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            again = keras.saving.load_model(f"{folder}/model.keras")
        assert again.gradient_mode.with_statistics
        again.fit(X, Y, **arguments, shuffle=False)
        results += [again.predict(X, **arguments), *again.get_weights()]
        return results

    alone, together = both(run)
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@check
def a_replica_without_samples_keeps_its_statistics():
    def make(cls):
        inputs = keras.Input((5,))
        x = keras.layers.BatchNormalization()(keras.layers.Dense(4)(inputs))
        return cls(inputs, keras.layers.Dense(3)(x))

    with strategy().scope():
        model = dense("batch", make=make)
    history = model.fit(X, Y, batch_size=11, verbose=0, shuffle=False)
    assert math.isfinite(history.history["loss"][0])
    for part in copies(model):
        assert all(np.isfinite(v).all() for v in part)


@check
def a_loss_of_one_number_warns_and_is_finite():
    def loss(y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2)

    with strategy().scope():
        model = dense("batch", loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(X, Y, batch_size=11, verbose=0, shuffle=False)
    assert any("replicas have equal weight" in str(w.message) for w in caught)
    assert math.isfinite(history.history["loss"][0])
    with strategy().scope():
        model = dense("vectorized", loss)
    raises(lambda: model.fit(X, Y, verbose=0), "one number for the batch")


@check
def what_is_outside_of_the_scope_is_refused():
    outside = big_batch.dense(keras.Model)
    model = dense("vectorized")
    with strategy().scope():
        raises(lambda: model.compile("sgd", "mse"), "model", "created outside")
        raises(lambda: model.fit(X, Y, verbose=0), "created outside")
        wrapped = kpg.PerGradModel.from_model(outside)
        wrapped.compile("sgd", "mse")
    raises(lambda: wrapped.fit(X, Y, verbose=0), "the weight", "kernel")
    optimizer = keras.optimizers.SGD()
    metric = keras.metrics.MeanSquaredError("own")
    with strategy().scope():
        model = dense("vectorized", optimizer=optimizer)
        raises(lambda: model.fit(X, Y, verbose=0), "the optimizer", "outside")
        model = dense("vectorized", metrics=[metric])
    raises(lambda: model.fit(X, Y, verbose=0), "metric's variable")


@check
def compile_enters_the_scope_by_itself():
    with strategy().scope():
        model = big_batch.dense(kpg.PerGradModel)
    model.compile("adam", "mse", metrics=["mae"], gradient_mode="vectorized")
    model.fit(X, Y, batch_size=11, verbose=0)
    assert_equal_copies(model)


@check
def one_update_a_sample_is_refused():
    with strategy().scope():
        model = dense(kpg.PerSample(updates="sample"))
    raises(lambda: model.fit(X, Y, verbose=0), "updates='sample'", "2 replicas")


@check
def optimizer_is_as_before_after_an_error():
    class Breaks(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise ValueError("broken")

    with strategy().scope():
        optimizer = Breaks()
        model = dense("vectorized", optimizer=optimizer)
    raises(lambda: model.fit(X, Y, verbose=0), "broken")
    assert "_all_reduce_sum_gradients" not in vars(optimizer)
    with strategy().scope():
        model = dense("vectorized")
    model.fit(X, Y, verbose=0)
    assert "_all_reduce_sum_gradients" not in vars(model.optimizer)


if __name__ == "__main__":
    main()
