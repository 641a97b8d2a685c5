"""Trackers in a `fit`: all readings arrive, however it ends."""

import gc
from unittest import mock

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models.making import trained
from tests.trackers.fits import Kept, X, Y, fitted, make, watching
from tests.trackers.test_tensorboard import events

MODELS = {"plain": keras.Model, "pergrad": kpg.PerGradModel}


def steps_of(log_dir):
    # Of the files of one second, the reader takes any first.
    return sorted(
        step for step, _ in events(log_dir)["scalars", "gradient_norm"]
    )


def assert_recorded(folder, steps):
    """Assert that events and a run have these steps."""
    assert steps_of(folder / "events") == steps
    run = kpg.runs.read_run(folder / "runs" / "a")
    assert [r.step for r in run.readings] == steps


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_all_readings_arrive(kind, run_eagerly, tmp_path):
    kept = Kept()
    model = make(MODELS[kind], run_eagerly=run_eagerly)
    trackers = [kpg.trackers.TensorBoard(tmp_path), kept]
    watch, _ = fitted(trackers, model=model, instruments="all", histograms=True)
    assert watch.steps == [2, 4, 6, 8]
    assert kept.readings == watch.readings
    assert kept.calls == ["begin", *["write"] * 4, "advise", "end"]
    (run,) = kept.runs
    assert (run.batch_size, run.steps_per_epoch) == (8, 4)
    assert run.probe_samples == 8
    seen = events(tmp_path)
    for name, value in watch.readings[-1].figures.items():
        if np.isfinite(value):
            assert seen["scalars", name][-1] == (8, np.float32(value))
    for path in watch.readings[-1].variable_names:
        assert len(seen["histograms", f"gradient/{path}"]) == 4
        assert len(seen["scalars", f"norm/{path}"]) == 4


@pytest.mark.parametrize("kind", MODELS)
def test_an_interrupted_fit_closes_all(kind, tmp_path):
    kept = Kept()
    board = kpg.trackers.TensorBoard(tmp_path / "events")
    model = make(MODELS[kind])
    how = {"log_dir": tmp_path / "runs", "run_name": "a"}
    # A user presses Ctrl-C in the second epoch, at the sixth step.
    press = mock.Mock(side_effect=[None] * 5 + [KeyboardInterrupt])
    user = keras.callbacks.LambdaCallback(on_train_batch_end=press)
    with pytest.raises(KeyboardInterrupt):
        fitted([board, kept], [user], model=model, **how)
    # Of a plain model, once Keras's list of callbacks is freed.
    gc.collect()
    assert kept.calls[-2:] == ["interrupt", "end"]
    assert board._writer is None
    assert [r.step for r in kept.readings] == [2, 4, 6]
    assert_recorded(tmp_path, [2, 4, 6])


def test_an_interruption_while_a_tracker_writes(tmp_path):
    slow, kept = Kept(), Kept()
    slow.write = mock.Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted([slow, kept])
    assert slow.calls == kept.calls == ["begin", "interrupt", "end"]


def test_a_tracker_of_three_methods_needs_no_more():
    three = mock.Mock(spec=["begin", "write", "end"])
    watch, _ = fitted([three], instruments="all", epochs=1)
    called = [name for name, *_ in three.method_calls]
    assert called == ["begin", "write", "write", "end"]
    assert watch.messages == []


def test_two_fits_are_two_runs(tmp_path):
    kept = Kept()
    watch, model = fitted([kpg.trackers.TensorBoard(tmp_path), kept])
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[watch])
    assert kept.calls.count("begin") == kept.calls.count("end") == 2
    assert steps_of(tmp_path) == [2, 4, 6, 8, 10, 12]


def test_a_resumed_fit_goes_on_with_the_steps(tmp_path):
    model = make()
    how = {"log_dir": tmp_path / "runs", "run_name": "a"}
    for epochs, begin in ((2, 0), (3, 2)):
        board = kpg.trackers.TensorBoard(tmp_path / "events")
        how |= {"epochs": epochs, "initial_epoch": begin}
        _, before = fitted(board, model=model, **how)
        # A new process loads what the one before has saved.
        before.save_weights(tmp_path / "model.weights.h5")
        model = make()
        model.load_weights(tmp_path / "model.weights.h5")
    assert_recorded(tmp_path, [2, 4, 6, 8, 10, 12])


def test_keras_logs_the_figures_for_tensorboard(tmp_path):
    """It reads the logs of the epochs, before the callback in the list."""
    watch = watching((), instruments="all")
    callbacks = [keras.callbacks.TensorBoard(tmp_path), watch]
    model = trained(make(), X, Y, batch_size=8, epochs=2, callbacks=callbacks)
    last = watch.readings[-1].figures
    assert last.keys() <= model.history.history.keys()
    seen = events(tmp_path / "train")
    for name, value in last.items():
        _, logged = seen["scalars", f"epoch_{name}"][-1]
        np.testing.assert_equal(logged, np.float32(value))
