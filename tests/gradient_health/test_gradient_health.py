"""The instruments in `fit`: logs, steps, strategies, refusals."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from tests.gradient_health.health_models import NotedWeights
from tests.models.making import compiled, net, trained

layers = keras.layers
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X[:, :2] * 2 + 1
PROBE = X[:6], Y[:6]


def make():
    keras.utils.set_random_seed(3)
    parts = layers.Dense(5, activation="relu"), layers.Dropout(0.3)
    model = net(*parts, shape=(4,), units=2)
    return compiled(model, optimizer="adam", jit_compile=False)


def fit(model, *callbacks, **options):
    options = {"batch_size": 8, "callbacks": callbacks, **options}
    return trained(model, X, Y, **options).history.history


def every(**options):
    options = {"probe": PROBE, "instruments": "all", "repeats": 1, **options}
    return GradientVariance(**options)


def test_an_update_is_one_call_of_the_train_function():
    """The update ratio is that of the last call; distances add up."""
    note, watch = NotedWeights(), every(every=2)
    fit(make(), watch, note, epochs=2)
    assert watch.steps == [2, 4, 6]
    flat = [np.concatenate([w.ravel() for w in ws]) for ws in note.noted]
    for step, reading in zip(watch.steps, watch.readings):
        moved = np.linalg.norm(flat[step] - flat[step - 1])
        ratio = moved / np.linalg.norm(flat[step - 1])
        way = np.linalg.norm(flat[step] - flat[0])
        known = reading.figures
        assert known["gradient_update_ratio"] == pytest.approx(ratio, rel=1e-5)
        assert known["gradient_distance"] == pytest.approx(way, rel=1e-5)


# Keras says so of every such data set.
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_batches_without_a_known_number_or_size_are_measured_by_epoch():
    def batches():
        for start in (0, 8, 16):
            yield X[start : start + 8], Y[start : start + 8]

    unknown = tf.TensorSpec((None, None))
    data = tf.data.Dataset.from_generator(
        batches, output_signature=(unknown, unknown)
    )
    for options in ({}, {"probe": None}, {"instruments": None}):
        model, watch = make(), every(**options)
        trained(model, data, callbacks=[watch])
        first = [1] if watch.instruments else []
        assert watch.steps == [*first, int(model.optimizer.iterations)]
        for reading in watch.readings if first else ():
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


def test_what_is_recorded_is_what_was_read(tmp_path, capsys):
    """Logs and bar have it, too. Without instruments there is no advice."""
    watch = every(log_dir=tmp_path, histograms=True)
    history = fit(make(), watch, epochs=2, verbose=1)
    for name, value in watch.readings[-1].figures.items():
        assert history[name][-1] == pytest.approx(value, nan_ok=True)
    shown = set(re.findall(r"(\w+): ", capsys.readouterr().out))
    assert shown == {"loss", *watch.readings[-1].figures}
    run = kpg.runs.read_run(watch.run_directory)
    # By their words: an undefined value is not equal to itself.
    assert repr(run.readings) == repr(watch.readings)
    assert isinstance(watch.advice, list)
    assert watch.messages == []
    plain = every(instruments=None)
    fit(make(), plain)
    assert plain.advice == []
