"""MirroredStrategy: training, saving, and what is refused."""

import math
import tempfile
import warnings

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import zoo
from tests.keras_internals.distribution.two_devices import (
    X,
    Y,
    assert_equal_copies,
    both,
    check,
    clipped,
    copies,
    dense,
    double,
    raises,
    strategy,
)
from tests.modes import big_batch


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
        assert not again.gradient_state.has_pending
        return again

    alone, together = both(train)
    assert_equal_copies(together)
    big_batch.assert_same(
        (together.get_weights(), {}),
        (alone.get_weights(), {}),
        rtol=1e-5,
        atol=1e-6,
    )


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
def metrics_of_ones_own_are_logged_and_other_entries_told():
    class Own(kpg.PerGradModel):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**logs, "spread": keras.ops.std(y_pred)}

    def make(cls):
        inputs = keras.Input((5,))
        return Own(inputs, keras.layers.Dense(3)(inputs))

    for mode in (
        "batch",
        "vectorized",
        kpg.Accumulated(microbatch_size=4),
    ):
        with strategy().scope():
            model = dense(mode, make=make)
        with pytest.warns(UserWarning, match=r"compute_metrics.*'spread'"):
            history = model.fit(X, Y, batch_size=11, verbose=0).history
        assert set(history) == {"loss"}


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


@check
def optimizers_inside_of_another_add_up_once():
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return

    def train(mode):
        bias, others = (keras.optimizers.SGD(0.1) for _ in range(2))
        chosen = keras.optimizers.OptimizerMap(others, {".*bias": bias})
        model = big_batch.dense(kpg.PerGradModel)
        optimizer = keras.optimizers.MultiOptimizer(chosen)
        model.compile(optimizer, "mse", gradient_mode=mode, jit_compile=False)
        model.fit(X, Y, batch_size=11, verbose=0, shuffle=False)
        assert "_all_reduce_sum_gradients" not in vars(bias)
        return model.get_weights(), {}

    for mode in ("batch", "vectorized", kpg.Accumulated(steps=2)):
        alone, together = both(lambda mode=mode: train(mode))
        big_batch.assert_same(together, alone, rtol=1e-5, atol=1e-6)


@check
def overwritten_variables_are_refused():
    with strategy().scope():
        model = dense("vectorized")
        model.trainable_variables[0].overwrite_with_gradient = True
    raises(lambda: model.fit(X, Y, verbose=0), "overwrite", "on one device")


@check
def accumulation_by_keras_fails_here():
    """Its own raises, and `Accumulated` gives what one device gives."""
    with strategy().scope():
        model = big_batch.dense(keras.Model)
        optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
        model.compile(optimizer, "mse", jit_compile=False)
    with pytest.raises(Exception) as error:
        model.fit(X[:20], Y[:20], batch_size=10, verbose=0)
    assert "merge_call" in str(error.value), str(error.value)

    def train():
        model = dense(kpg.Accumulated(steps=2))
        model.fit(X, Y, batch_size=11, verbose=0, shuffle=False)
        return model.get_weights(), {}

    alone, together = both(train)
    big_batch.assert_same(together, alone, rtol=1e-5, atol=1e-6)


@check
def no_batch_of_a_generator_is_lost():
    def batches():
        # Copies: under a strategy TensorFlow overwrites what a generator
        # yields, for keras.Model, too.
        for k in range(0, 20, 4):
            yield X[k : k + 4].copy(), Y[k : k + 4].copy()

    def train():
        model = dense("vectorized", metrics=["mae"])
        history = model.fit(batches(), verbose=0, validation_data=batches())
        return model.get_weights(), history.history

    alone, together = both(train)
    big_batch.assert_same(together, alone, rtol=1e-5, atol=1e-6)


@check
def synchronized_normalization_in_parts_is_refused():
    def make(cls):
        inputs = keras.Input((5,))
        norm = keras.layers.BatchNormalization(synchronized=True, name="norm")
        added = big_batch.Added()(norm(inputs))
        return cls(inputs, keras.layers.Dense(3)(added))

    for mode, way_out in (
        ("accumulated", "synchronized=False"),
        ("per_sample", "Use GroupNormalization"),
    ):
        with strategy().scope():
            model = dense(mode, make=make)
        before = model.get_weights()
        raises(lambda m=model: m.fit(X, Y, verbose=0), "'norm'", way_out)
        for a, b in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(a, b)

    def train():
        model = dense("batch", make=make)
        model.fit(X[:22], Y[:22], batch_size=11, verbose=0, shuffle=False)
        return model.get_weights(), {}

    # Keras rounds the statistics of several replicas in its own way.
    alone, together = both(train)
    big_batch.assert_same(together, alone, rtol=1e-3, atol=1e-4)


@check
def instruments_of_gradient_health_read_the_same():
    def read(model):
        watch = kpg.callbacks.GradientVariance(
            (X[:6], Y[:6]), instruments="all", repeats=1, histograms=True
        )
        # Global batches of one size: each replica has as many samples.
        options = {"batch_size": 10, "verbose": 0, "shuffle": False}
        model.fit(X[:20], Y[:20], callbacks=[watch], **options)
        assert len(watch.readings) == 2
        assert watch.messages == []
        return dict(watch.readings[-1].figures)

    models = both(lambda: dense("batch"))
    one, other = map(read, models)
    alone, together = ((m.get_weights(), {}) for m in models)
    big_batch.assert_same(together, alone, rtol=1e-4, atol=1e-5)
    assert one == pytest.approx(other, rel=0.01, nan_ok=True)


@check
def gradients_are_watched_on_a_probe_inside_of_the_scope():
    def fit(**options):
        model = dense(kpg.Vectorized(clipped()))
        before = model.get_weights()
        watch = kpg.callbacks.GradientVariance(instruments="all", **options)
        given = {"batch_size": 10, "verbose": 0, "shuffle": False}

        def train():
            model.fit(X[:20], Y[:20], callbacks=[watch], **given)

        if options.get("probe") is None:
            raises(train, *REFUSED[options.get("source")])
            for one, other in zip(before, model.get_weights()):
                np.testing.assert_array_equal(one, other)
            assert watch.readings == []
            watch = kpg.callbacks.DataStall(verbose=0)
            train()  # nothing is left
            return None
        train()
        assert watch.messages == []
        return [dict(reading.figures) for reading in watch.readings]

    double()
    one, other = both(lambda: fit(probe=(X[:6], Y[:6])))
    assert len(one) == len(other) == 2
    for figures, others in zip(one, other, strict=True):
        assert figures == pytest.approx(others, rel=1e-9, nan_ok=True)
    with strategy().scope():
        fit(source="training")
        fit()


#: What is said where a batch is split over the replicas, by `source`.
REFUSED = {
    "training": ("spread over 2 replicas of MirroredStrategy", "on a probe"),
    None: ("`probe` expected a batch", "replicas of MirroredStrategy"),
}
