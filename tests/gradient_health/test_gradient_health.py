"""The instruments in `fit`: logs, progress bar, steps, strategies, refusals."""

import contextlib
import csv
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from tests.marks import few

layers = keras.layers
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X[:, :2] * 2 + 1
PROBE = X[:6], Y[:6]


def make(cls=keras.Model, rate=0.3, **compiling):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    x = layers.Dense(5, activation="relu")(inputs)
    x = layers.Dropout(rate)(x)
    model = cls(inputs, layers.Dense(2)(x))
    compiling = {"jit_compile": False, **compiling}
    model.compile("adam", "mse", **compiling)
    return model


def fit(model, *callbacks, **options):
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options).history


def every(**options):
    options = {"probe": PROBE, "instruments": "all", "repeats": 1, **options}
    return GradientVariance(**options)


def state(model):
    return [np.array(v) for v in [*model.variables, *model.optimizer.variables]]


MODELS = {
    "plain": {},
    "eager": {"run_eagerly": True},
    "xla": {"jit_compile": True},
    "several steps": {"steps_per_execution": 2},
    "clipped": {
        "cls": kpg.PerGradModel,
        "gradient_mode": lambda: kpg.Vectorized(
            kpg.ClippedMean(0.1, noise_multiplier=1.0, seed=5)
        ),
    },
    "accumulated": {
        "cls": kpg.PerGradModel,
        "gradient_mode": lambda: kpg.Accumulated(2, 4),
    },
}


@pytest.mark.parametrize("case", few(MODELS, ["eager", "clipped"]))
def test_training_is_the_same_to_the_bit(case):
    states = []
    for is_watched in (False, True):
        made = {
            k: v() if k == "gradient_mode" else v
            for k, v in MODELS[case].items()
        }
        model = make(**made)
        watch = every(every=1, histograms=True)
        fit(model, *[watch] * is_watched, epochs=2)
        states.append(state(model))
    for one, other in zip(*states):
        np.testing.assert_array_equal(one, other)
    assert len(watch.readings) >= 2
    assert all("gradient_alpha" in r.figures for r in watch.readings)


def test_logs_progress_bar_and_file(tmp_path, capsys):
    watch = every(progress_bar=("alpha", "layers"))
    path = tmp_path / "log.csv"
    history = fit(
        make(), keras.callbacks.CSVLogger(path), watch, epochs=2, verbose=2
    )
    for name, value in watch.readings[-1].figures.items():
        assert history[name][-1] == pytest.approx(value, nan_ok=True)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert set(watch.readings[-1].figures) <= set(rows[0])
    shown = set(re.findall(r"(gradient_\w+): ", capsys.readouterr().out))
    assert shown == {
        "gradient_norm",
        "gradient_noise_scale",
        "gradient_alpha",
        "gradient_vanishing_layers",
        "gradient_exploding_layers",
    }


def test_an_update_is_one_call_of_the_train_function():
    """The update ratio is that of the last call; distances add up."""
    weights = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights.append(self.model.get_weights())

    model = make()
    weights.append(model.get_weights())
    watch = every(every=2)
    fit(model, watch, Note(), epochs=2)
    assert watch.steps == [2, 4, 6]
    for step, reading in zip(watch.steps, watch.readings):
        before, now = weights[step - 1], weights[step]
        moved = [np.square(a - b).sum() for a, b in zip(now, before)]
        sizes = [np.square(w).sum() for w in before]
        way = [np.square(a - b).sum() for a, b in zip(now, weights[0])]
        known = reading.figures
        assert known["gradient_update_ratio"] == pytest.approx(
            np.sqrt(sum(moved) / sum(sizes)), rel=1e-5
        )
        assert known["gradient_distance"] == pytest.approx(
            np.sqrt(sum(way)), rel=1e-5
        )


# Keras says so of every such data set.
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_batches_without_a_known_number_or_size():
    def batches():
        for start in (0, 8, 16):
            yield X[start : start + 8], Y[start : start + 8]

    data = tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec((None, None)),
            tf.TensorSpec((None, None)),
        ),
    )
    for probe in (PROBE, None):
        watch = every(probe=probe)
        make().fit(data, verbose=0, shuffle=False, callbacks=[watch])
        assert watch.steps[0] == 1
        assert len(watch.readings) == 2
        for reading in watch.readings:
            assert np.isfinite(reading.figures["gradient_alpha"])
            assert reading.figures["gradient_update_ratio"] > 0


def test_two_fits_begin_anew_and_a_resumed_one_goes_on():
    model, watch = make(), every()
    fit(model, watch, epochs=10)
    first = watch.readings
    assert [r.step for r in first] == watch.steps
    fit(model, watch, epochs=10)
    assert watch.readings is not first
    # The distance is from where this fit began.
    assert (
        watch.readings[0].figures["gradient_distance"]
        < first[-1].figures["gradient_distance"]
    )
    fit(model, watch, epochs=12, initial_epoch=10)
    assert watch.readings[-1].step == int(model.optimizer.iterations)


def test_under_a_distribution_strategy():
    readings = []
    for scope in (
        contextlib.nullcontext(),
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
    ):
        with scope:
            model = make(rate=0.0)
        watch = every(histograms=True)
        fit(model, watch)
        readings.append(watch.readings[-1])
    one, other = readings
    assert len(one.histograms) == len(other.histograms) == 5
    assert dict(one.figures) == pytest.approx(
        dict(other.figures), rel=1e-3, nan_ok=True
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instruments": "alphas"}, "`instruments` expected.*'norm_test', "),
        ({"instruments": ("alpha", "beta")}, "'layers'. Received: instrum"),
        ({"instruments": 3}, "instruments=3"),
        ({"source": "train"}, "`source` expected 'probe'.*source='train'"),
        ({"trackers": "logs"}, "`trackers` expected"),
        ({"progress_bar": "alpha"}, "`progress_bar`.*none is chosen"),
        (
            {"instruments": "alpha", "progress_bar": ("cabs",)},
            "`progress_bar` expected.*instruments: 'alpha'. Received",
        ),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        GradientVariance(**arguments)


class Noting(kpg.trackers.Tracker):
    def __init__(self, fails=False):
        self.told, self.fails = [], fails

    def begin(self, run):
        self.told.append(run.probe_samples)

    def write(self, reading):
        if self.fails:
            raise RuntimeError("no room\nleft")
        self.told.append(reading)

    def end(self):
        self.told.append("end")


def test_trackers_have_each_reading_and_one_that_fails_is_left_out():
    well, ill = Noting(), Noting(fails=True)
    watch = every(every=1, trackers=(ill, well))
    fit(make(), watch)
    assert well.told == [6, *watch.readings, "end"]
    assert ill.told == [6, "end"]
    assert len(watch.messages) == 1
    assert "Noting failed in `write`" in watch.messages[0]


def test_what_is_recorded_is_what_was_read(tmp_path):
    watch = every(log_dir=tmp_path, histograms=True)
    fit(make(), watch, epochs=2)
    run = kpg.runs.read_run(watch.run_directory)
    for one, other in zip(run.readings, watch.readings, strict=True):
        assert one.step == other.step
        assert one.histograms == other.histograms
        assert one.layers == other.layers
        assert dict(one.figures) == pytest.approx(
            dict(other.figures), nan_ok=True
        )


def test_advice_is_given_with_instruments_only():
    model, watch = make(), every()
    fit(model, watch, epochs=2)
    assert isinstance(watch.advice, list)
    assert watch.messages == []
    plain = every(instruments=None)
    fit(make(), plain)
    assert plain.advice == []
