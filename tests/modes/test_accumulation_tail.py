"""No sample is lost or counted twice, however training stops and goes on."""

import itertools

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models.making import assert_equal
from tests.modes import big_batch
from tests.modes.big_batch import TARGETS, N, X, compiled

NAME = "mean_with_sample_weight-weighted"
pytestmark = pytest.mark.usefixtures("float64")


def sgd():
    # Without momentum an update is the same whenever it is made.
    return keras.optimizers.SGD(0.1)


def ours(steps=3, tail="apply", name=NAME, **arguments):
    mode = kpg.Accumulated(steps=steps, microbatch_size=3, tail=tail)
    return compiled(
        name, kpg.PerGradModel, sgd(), gradient_mode=mode, **arguments
    )


def fit(model, sizes, name=NAME, **arguments):
    return model.fit(
        big_batch.batches(name, sizes), shuffle=False, verbose=0, **arguments
    )


def updates(groups, name=NAME):
    """The weights after plain updates with these groups of samples."""
    model = compiled(name, keras.Model, sgd(), jit_compile=False)
    data = big_batch.batches(name, [N])[0]
    for rows in groups:
        x, *rest = (part[rows] for part in data)
        model.train_on_batch(x, *rest)
    return model.get_weights()


def assert_weights(model, expected):
    assert_equal(model.get_weights(), expected, rtol=1e-10, atol=1e-10)


def rows(*parts):
    return np.concatenate([np.arange(a, b) for a, b in parts])


SIZES = (5, 5, 5, 8)
EPOCH = [rows((0, 15)), rows((15, 23))]
#: Settings of the model and of `fit`, the updates of two epochs, what waits.
FITS = {
    "apply": ({}, {}, EPOCH * 2, 0),
    "keep": (
        {"tail": "keep"},
        {},
        [rows((0, 15)), rows((15, 23), (0, 10))],
        2,
    ),
    "drop": ({"tail": "drop"}, {}, EPOCH[:1] * 2, 0),
    "steps_per_epoch": (
        {},
        {"steps_per_epoch": 2},
        [rows((0, 10)), rows((10, 23))],
        0,
    ),
    "steps_per_execution": (
        {"steps_per_execution": 4, "jit_compile": False},
        {},
        EPOCH * 2,
        0,
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_updates_of_two_epochs(name):
    settings, fitting, expected, waiting = FITS[name]
    model = ours(**settings)
    fit(model, SIZES, epochs=2, **fitting)
    assert_weights(model, updates(expected))
    assert int(model.optimizer.iterations) == len(expected)
    assert int(model.gradient_state.count) == waiting


def test_a_second_fit_goes_on_with_what_was_kept():
    model = ours(tail="keep")
    fit(model, SIZES, epochs=2)
    fit(model, SIZES)
    expected = FITS["keep"][2] + [rows((10, 23), (0, 5)), rows((5, 23))]
    assert_weights(model, updates(expected))
    assert int(model.gradient_state.count) == 0


def test_train_on_batch_counts_on():
    model = ours(steps=2)
    data = big_batch.batches(NAME, (4, 6, 5))
    for k in range(3):
        model.train_on_batch(*data[k])
    assert_weights(model, updates([rows((0, 10))]))
    assert int(model.gradient_state.count) == 1


class StopAt(keras.callbacks.Callback):
    def __init__(self, batch, error=None):
        super().__init__()
        self.batch, self.error = batch, error

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            if self.error is not None:
                raise self.error
            self.model.stop_training = True


@pytest.mark.parametrize("as_list", [False, True])
def test_stopped_by_a_callback(as_list):
    model = ours()
    stop = StopAt(4)
    if as_list:
        stop = keras.callbacks.CallbackList(
            [stop], add_history=True, model=model
        )
    fit(model, (4, 4, 2, 5, 4, 4), callbacks=stop)
    assert_weights(model, updates([rows((0, 10)), rows((10, 19))]))
    if as_list:
        assert len(stop.callbacks) == 2  # That and History.


@pytest.mark.parametrize("tail", ["apply", "keep", "drop"])
def test_interrupted_and_fitted_again(tail):
    model = ours(tail=tail)
    with pytest.raises(KeyboardInterrupt):
        fit(model, SIZES, callbacks=[StopAt(1, KeyboardInterrupt())])
    assert int(model.gradient_state.count) == 2
    fit(model, SIZES)
    expected = {
        "apply": EPOCH,
        "drop": EPOCH[:1],
        # Only here what waited is part of the next update.
        "keep": [rows((0, 10), (0, 5)), rows((5, 23))],
    }
    assert_weights(model, updates(expected[tail]))


def test_interrupted_between_two_sums(monkeypatch):
    """The batch of an eager step is added as a whole or not at all."""
    model = ours(tail="keep", run_eagerly=True)
    fit(model, (5,))
    add = keras.Variable.assign_add
    added = []

    def interrupted(variable, value):
        added.append(variable.name)
        if len(added) == 3:
            raise KeyboardInterrupt
        return add(variable, value)

    data = big_batch.batches(NAME, (6,))[0]
    with monkeypatch.context() as patch:
        patch.setattr(keras.Variable, "assign_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.train_on_batch(*data)
    assert all(name.startswith("pending_") for name in added)
    assert int(model.gradient_state.count) == 1
    fit(model, (5, 5, 8))
    assert_weights(model, updates([rows((0, 5), (0, 10))]))


@pytest.mark.parametrize(
    ("tail", "loaded"),
    [*itertools.product(["keep", "drop"], [False, True]), ("apply", False)],
)
def test_batches_from_outside_wait_for_keep_only(tail, loaded, tmp_path):
    """From a loop before the fit, or from a file."""
    model = ours(tail=tail)
    model.train_on_batch(*big_batch.batches(NAME, (4,))[0])
    if loaded:
        model.save_weights(tmp_path / "waits.weights.h5")
        model = ours(tail=tail)
        model.load_weights(tmp_path / "waits.weights.h5")
    fit(model, (5, 5, 5))
    expected = [rows((0, 4), (0, 10))] if tail == "keep" else [rows((0, 15))]
    assert_weights(model, updates(expected))


class Probe(keras.callbacks.Callback):
    """What a callback sees at the end of an epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_test_begin(self, logs=None):
        self.seen.append(("test", self.model.get_weights()))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("epoch", self.model.get_weights()))


def test_callbacks_and_validation_see_the_tail_applied():
    model, probe = ours(), Probe()
    fit(model, SIZES, callbacks=[probe], validation_data=(X, TARGETS))
    assert [name for name, _ in probe.seen] == ["test", "epoch"]
    for _, weights in probe.seen:
        assert_equal(weights, updates(EPOCH), rtol=1e-10)


@pytest.mark.parametrize("tail", ["apply", "keep"])
@pytest.mark.parametrize("again", ["same model", "new model"])
def test_backup_and_restore(tail, again, tmp_path):
    undisturbed = ours(tail=tail)
    fit(undisturbed, SIZES, epochs=3)

    class FailInSecondEpoch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if self.epoch == 1 and batch == 1:
                raise RuntimeError("power cut")

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    model = ours(tail=tail)
    with pytest.raises(RuntimeError, match="power cut"):
        fit(model, SIZES, epochs=3, callbacks=[backup(), FailInSecondEpoch()])
    if again == "new model":
        model = ours(tail=tail)
    fit(model, SIZES, epochs=3, callbacks=[backup()])
    assert_weights(model, undisturbed.get_weights())
    count = int(undisturbed.gradient_state.count)
    assert int(model.gradient_state.count) == count


def test_saved_with_the_model(tmp_path):
    model = ours(tail="keep")
    fit(model, SIZES)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.gradient_mode.get_config() == model.gradient_mode.get_config()
    for again in (model, loaded):
        fit(again, SIZES)
        assert int(again.gradient_state.count) == 2
    assert_weights(loaded, model.get_weights())
    assert_weights(loaded, updates(FITS["keep"][2]))


def test_weights_go_to_and_from_plain_models(tmp_path):
    model = ours(tail="keep")
    fit(model, SIZES)
    plain = compiled(NAME, keras.Model, sgd())
    plain.optimizer.build(plain.trainable_variables)
    model.save_weights(tmp_path / "ours.weights.h5")
    plain.load_weights(tmp_path / "ours.weights.h5")
    assert_weights(plain, model.get_weights())
    # A file without sums says that nothing waits.
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")
    assert int(model.gradient_state.count) == 0


def test_compiling_again_forgets():
    model = ours(tail="keep")
    fit(model, SIZES)
    before = model.get_weights()
    mode = kpg.Accumulated(steps=2, tail="keep")
    model.compile(sgd(), "mse", gradient_mode=mode)
    assert int(model.gradient_state.count) == 0
    model.train_on_batch(X[:4], TARGETS[:4])
    assert_weights(model, before)


@pytest.mark.parametrize("name", ["steps", "microbatch_size"])
@pytest.mark.parametrize(
    "value", [0, -1, 1.5, True, np.True_, np.float32(4), "4"]
)
def test_bad_numbers(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` must be a positive int"):
        kpg.Accumulated(**{name: value})


def test_integers_of_numpy():
    mode = kpg.Accumulated(steps=np.int64(4), microbatch_size=np.int32(8))
    assert (mode.steps, mode.microbatch_size) == (4, 8)
    assert type(mode.get_config()["steps"]) is int
    mode = kpg.PerSample(parallel_iterations=np.uint8(2))
    assert mode.parallel_iterations == 2
    assert kpg.ClippedMean(1.0, seed=np.int64(3)).get_config()["seed"] == 3


@pytest.mark.parametrize("tail", ["flush", None, True])
def test_bad_tail(tail):
    with pytest.raises(ValueError, match=r"`tail` must be one of \('apply'"):
        kpg.Accumulated(tail=tail)
