"""Instruments of the training batch, read in the step that trains on it."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from tests.gradient_health import health_models
from tests.gradient_health.health_models import OwnStep
from tests.gradient_health.health_oracle import figures, trained_weights
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    trained,
    unchanged,
    weights,
)
from tests.trackers.fits import Kept

layers = keras.layers
X = np.random.default_rng(0).normal(size=(22, 4))
Y = X[:, :2] * 2 + 1
CLIPPED = kpg.Vectorized(kpg.ClippedMean(0.3))


def make(mode=CLIPPED, cls=kpg.PerGradModel, **options):
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(5, activation="tanh")
    model = net(hidden, shape=(4,), units=2, cls=cls)
    return compiled(model, mode, **{"jit_compile": False, **options})


def watch_of(**options):
    options = {"instruments": "all", **options}
    return GradientVariance(source="training", **options)


def fit(model, *callbacks, **options):
    options = {"batch_size": 8, "callbacks": callbacks, **options}
    return trained(model, X, Y, **options).history.history


def check(model, reading, before, after, batch, begin=None, rel=1e-10):
    """Compare a reading with single samples at the weights before."""
    weights = (begin or before, after, before)
    first, last, start = (trained_weights(model, w) for w in weights)
    expected = figures(model, after, batch, rate=0.1)
    moved = np.linalg.norm(last - start)
    expected["gradient_update_ratio"] = moved / np.linalg.norm(start)
    expected["gradient_distance"] = np.linalg.norm(start - first)
    del expected["gradient_alpha"]
    for name, value in expected.items():
        got = reading.figures[name]
        assert got == pytest.approx(value, rel=rel, abs=1e-12), name


@pytest.mark.parametrize("name", ["weighted", "lstm", "shared", "several"])
def test_equal_single_samples_of_that_batch(float64, name):
    base, *data = health_models.CASES[name]()
    x, y, weights = batch = (*data, None)[:3]
    options = {"loss_weights": [2.0, 0.5]} if name == "several" else {}
    model = compiled(base, CLIPPED, base.loss, jit_compile=False, **options)
    before, watch = model.get_weights(), watch_of(histograms=True)
    model.fit(x, y, 5, 1, 0, [watch], sample_weight=weights, shuffle=False)
    check(
        model, watch.readings[0], before, after=model.get_weights(), batch=batch
    )
    assert "sample_norms" in watch.readings[0].histograms
    assert watch.advice == watch.messages == []


@pytest.mark.parametrize(
    "options",
    [{}, {"run_eagerly": True}, {"jit_compile": True}],
    ids=["graph", "eager", "xla"],
)
def test_each_step_of_a_fit_with_a_ragged_end(float64, options):
    rel = 1e-9 if "jit_compile" in options else 1e-10
    note, watch = health_models.NotedWeights(), watch_of(every=2)
    model = make(**options)
    history = fit(model, note, watch, epochs=2)
    assert watch.steps == [0, 2, 4]
    assert [r.samples for r in watch.readings] == [8, 6, 8]
    known = dict(watch.readings[-1].figures)
    assert "gradient_alpha" not in known
    assert history["gradient_norm_test"][-1] == known["gradient_norm_test"]
    for step, reading in zip(watch.steps, watch.readings):
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        given = X[rows], Y[rows], None
        around = note.noted[step], note.noted[step + 1]
        check(model, reading, *around, given, note.noted[0], rel)


def test_training_is_the_same_to_the_bit_and_nothing_is_left():
    mode, states = kpg.Vectorized(), []
    for is_watched in (False, True):
        model = make(mode, optimizer="adam")
        fit(model)
        own, watch = model.train_function, watch_of(every=2)
        fit(model, *[watch] * is_watched, epochs=3)
        assert model.gradient_mode is mode
        assert model.train_function is own
        assert model.step_options.readers == ()
        states.append(weights(model))
    assert_equal(*states)


class Reads(kpg.modes.StepReader):
    """Reads the steps of some numbers, which share a trace of their shape."""

    def __init__(self, steps):
        self.steps, self.asked = steps, 0
        self.traced, self.samples, self.means = [], [], []

    def is_due(self):
        self.asked += 1
        return self.asked in self.steps

    def read(self, samples):
        self.traced.append(samples.n)
        dots = samples.dots([None] * 4)
        norms = samples.squared_norms()
        return {"mean": samples.mean(), "dots": dots, "norms": norms}

    def receive(self, values):
        self.samples.append(values["norms"].shape[1])
        assert np.asarray(values["dots"]).tolist() == [0] * self.samples[-1]
        self.means.append([np.shape(g) for g in values["mean"]])


def test_only_measured_steps_run_another_function():
    model, reader = make(), Reads((2, 3))
    with model.read_steps(reader):
        model.fit(X[:16], Y[:16], 8, 2, 0)
    assert len(reader.traced) <= 2
    assert reader.means == [[(4, 5), (5,), (5, 2), (2,)]] * 2
    fit(model)
    assert reader.asked == 4


def test_several_fits_initial_epoch_and_two_models():
    one, other, watch = make(), make(), watch_of()
    fit(one, watch, epochs=2)
    assert watch.steps[0] == 0
    fit(one, watch, epochs=4, initial_epoch=2)
    assert watch.steps[0] == 6
    assert watch.readings[0].figures["gradient_distance"] == 0
    fit(other, watch)
    assert watch.steps == [0, 1, 2]
    both = [watch_of(), GradientVariance((X, Y), instruments="all")]
    fit(one, *both)
    assert both[0].steps == [12, 13, 14]
    assert "gradient_alpha" in both[1].readings[-1].figures


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_fit_leaves_nothing(error):
    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise error

    model, watch = make(), watch_of()
    mode, weights = model.gradient_mode, model.get_weights()
    with pytest.raises(error):
        fit(model, watch, Stops())
    assert model.gradient_mode is mode
    assert len(watch.readings) == 1
    model.set_weights(weights)
    fit(model)
    assert len(watch.readings) == 1
    fit(model, watch)
    assert len(watch.readings) == 3


def test_an_overflow_is_undefined_and_makes_no_update():
    def scaled(by):
        sgd = keras.optimizers.SGD(0.1)
        return keras.optimizers.LossScaleOptimizer(sgd, initial_scale=by)

    model, watch = make(optimizer=scaled(2.0**127)), watch_of()
    model.fit(X[:8], 1e3 * Y[:8], verbose=0, callbacks=[watch])
    first = watch.readings[0].figures
    assert not np.isfinite(first["gradient_norm_test"])
    assert first["gradient_update_ratio"] == 0
    same, watch = watch_of(), watch_of()
    fit(make(), same)
    fit(make(optimizer=scaled(8.0)), watch)
    for one, other in zip(watch.readings, same.readings):
        assert dict(one.figures) == pytest.approx(
            dict(other.figures), rel=1e-4, abs=1e-6, nan_ok=True
        )


def test_a_single_sample_and_one_that_is_not_finite():
    model, watch = make(), watch_of()
    model.fit(X[:1], Y[:1], verbose=0, callbacks=[watch])
    known = watch.readings[0].figures
    assert {"gradient_norm", "gradient_update_ratio"} <= set(known)
    assert not {"gradient_norm_test", "gradient_dead_units"} & set(known)
    x = X.copy()
    x[2] = np.nan
    model.fit(x[:8], Y[:8], verbose=0, callbacks=[watch])
    assert np.isnan(watch.readings[0].figures["gradient_norm_test"])


class Forgets(kpg.Vectorized):
    """Drops the readings."""

    changes_gradients = True

    def step(self, model, x, y, sample_weight):
        step = super().step(model, x, y, sample_weight)
        return kpg.modes.Step(step.loss, step.y_pred, step.gradients)


def plain():
    return compiled(keras.Sequential([layers.Dense(2)]))


def wrapped():
    model = make()
    model.make_train_function()
    function = model.train_function
    model.train_function = lambda iterator: function(iterator)
    return model


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (lambda: make("batch"), "gradient_mode='vectorized'.*Received: Batch"),
        (lambda: make("per_sample"), "Received: PerSample.*probe"),
        (lambda: make(kpg.Accumulated(2, 4)), "Received: Accumulated"),
        (lambda: make(steps_per_execution=2), "steps_per_execution=2"),
        (lambda: make(Forgets()), "has not let.*can_be_read = False"),
        (plain, "from_model.*a Sequential"),
        (lambda: make(cls=OwnStep), "class OwnStep with a train_step"),
        (wrapped, "Expected Keras's own"),
    ],
)
def test_models_are_refused_before_training(maker, message):
    model = maker()
    model.build((None, 4))
    with unchanged(model), pytest.raises(ValueError, match=message):
        fit(model, watch_of())
    fit(model)  # as before


@pytest.mark.quick
def test_trackers_have_the_readings():
    kept = Kept()
    watch = watch_of(trackers=kept, histograms=True)
    fit(make(), watch)
    assert kept.readings == watch.readings
    assert "gradient_norm_test" in kept.readings[0].figures


def test_reading_goes_on_in_a_model_that_is_compiled_again():
    model, reader = make(), Reads(range(99))
    with model.read_steps(reader):
        fit(model)
        model.compile("sgd", "mae", gradient_mode="vectorized")
        fit(model)
        assert reader.samples == [8, 8, 6] * 2
        mode = model.gradient_mode
        with pytest.raises(ValueError, match=r"can be read.*Received: Batch"):
            model.compile("sgd", "mse")
    fit(model)
    assert len(reader.samples) == 6
    model.compile("sgd", "mse", gradient_mode=mode)
    with model.read_steps(reader):
        fit(model)
    assert len(reader.samples) == 9
    own = model.train_function
    fit(model)
    assert model.train_function is own
