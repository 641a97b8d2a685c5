"""No sample is lost or counted twice, however training stops and goes on."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.models.making import assert_equal, trained
from tests.modes import big_batch
from tests.modes.big_batch import TARGETS, N, X, compiled

NAME = "mean_with_sample_weight-weighted"
pytestmark = pytest.mark.usefixtures("float64")


def sgd():
    # Without momentum an update is the same whenever it is made.
    return keras.optimizers.SGD(0.1)


def ours(steps=3, tail="apply", **arguments):
    mode = kpg.Accumulated(steps=steps, microbatch_size=3, tail=tail)
    arguments["gradient_mode"] = mode
    return compiled(NAME, kpg.PerGradModel, sgd(), **arguments)


def fit(model, sizes, **arguments):
    return trained(model, big_batch.batches(NAME, sizes), **arguments)


def updates(groups):
    """The weights after plain updates with these groups of samples."""
    model = compiled(NAME, keras.Model, sgd(), jit_compile=False)
    data = big_batch.batches(NAME, [N])[0]
    for rows in groups:
        x, *rest = (part[rows] for part in data)
        model.train_on_batch(x, *rest)
    return model.get_weights()


def assert_same(model, expected):
    assert_equal(model.get_weights(), expected, rtol=1e-10, atol=1e-10)


def assert_updates(model, groups):
    assert_same(model, updates(groups))


def rows(*parts):
    return np.concatenate([np.arange(a, b) for a, b in parts])


SIZES = (5, 5, 5, 8)
# With three steps an update: one, and what is left of the epoch.
EPOCH = [rows((0, 15)), rows((15, 23))]
KEPT = [rows((0, 15)), rows((15, 23), (0, 10)), rows((10, 23), (0, 5))]


@pytest.mark.parametrize(
    ("settings", "fitting", "groups", "left"),
    [
        ({}, {}, EPOCH * 2, 0),
        ({"tail": "drop"}, {}, EPOCH[:1] * 2, 0),
        ({"tail": "keep"}, {}, KEPT[:2], 2),
        ({"tail": "keep"}, {"epochs": 3}, [*KEPT, rows((5, 23))], 0),
        ({}, {"steps_per_epoch": 2}, [rows((0, 10)), rows((10, 23))], 0),
        ({"steps_per_execution": 4, "jit_compile": False}, {}, EPOCH * 2, 0),
    ],
    ids=[
        "apply",
        "drop",
        "keep",
        "keep on",
        "steps per epoch",
        "several steps",
    ],
)
def test_what_is_left_of_an_epoch(settings, fitting, groups, *, left):
    model = ours(**settings)
    fit(model, SIZES, **{"epochs": 2, **fitting})
    assert_updates(model, groups)
    assert int(model.optimizer.iterations) == len(groups)
    assert int(model.gradient_state.count) == left


def test_train_on_batch_counts_on():
    model = ours(steps=2)
    data = big_batch.batches(NAME, (4, 6, 5))
    for k in range(3):
        model.train_on_batch(*data[k])
    assert_updates(model, [rows((0, 10))])
    assert int(model.gradient_state.count) == 1


class StopAt(keras.callbacks.Callback):
    """Stops or interrupts a training after so many batches."""

    def __init__(self, batches, error=None):
        super().__init__()
        self.left, self.error = batches, error

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            if self.error is not None:
                raise self.error
            self.model.stop_training = True


@pytest.mark.parametrize("as_list", [False, True])
def test_stopped_by_a_callback(as_list):
    model = ours()
    stop = StopAt(5)
    if as_list:
        stop = keras.callbacks.CallbackList(
            [stop], add_history=True, model=model
        )
    fit(model, (4, 4, 2, 5, 4, 4), callbacks=stop)
    assert_updates(model, [rows((0, 10)), rows((10, 19))])
    if as_list:
        assert len(stop.callbacks) == 2  # That and History.


@pytest.mark.parametrize("tail", ["apply", "keep", "drop"])
def test_interrupted_and_fitted_again(tail):
    model = ours(tail=tail)
    with pytest.raises(KeyboardInterrupt):
        fit(model, SIZES, callbacks=[StopAt(2, KeyboardInterrupt())])
    assert int(model.gradient_state.count) == 2
    fit(model, SIZES)
    expected = {
        "apply": EPOCH,
        "drop": EPOCH[:1],
        # Only here what waited is part of the next update.
        "keep": [rows((0, 10), (0, 5)), rows((5, 23))],
    }
    assert_updates(model, expected[tail])


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
    assert_updates(model, [rows((0, 5), (0, 10))])


@pytest.mark.parametrize("tail", ["apply", "keep", "drop"])
@pytest.mark.parametrize("loaded", [False, True])
def test_batches_of_a_former_loop_wait_for_keep_only(loaded, tail, tmp_path):
    model = ours(tail=tail)
    model.train_on_batch(*big_batch.batches(NAME, (4,))[0])
    if loaded:
        model.save_weights(tmp_path / "waits.weights.h5")
        model = ours(tail=tail)
        model.load_weights(tmp_path / "waits.weights.h5")
    fit(model, (5, 5, 5))
    kept = [rows((0, 4), (0, 10))]
    assert_updates(model, kept if tail == "keep" else EPOCH[:1])


def test_callbacks_and_validation_see_the_tail_applied():
    model, seen = ours(), []

    def look(name):
        return lambda *_: seen.append((name, model.get_weights()))

    probe = keras.callbacks.LambdaCallback(
        on_test_begin=look("test"), on_epoch_end=look("epoch")
    )
    fit(model, SIZES, callbacks=[probe], validation_data=(X, TARGETS))
    assert [name for name, _ in seen] == ["test", "epoch"]
    for _, weights in seen:
        assert_equal(weights, updates(EPOCH), rtol=1e-10)


@pytest.mark.parametrize("tail", ["apply", "keep"])
@pytest.mark.parametrize("again", ["same model", "new model"])
def test_backup_and_restore(tail, again, tmp_path):
    undisturbed = ours(tail=tail)
    fit(undisturbed, SIZES, epochs=3)
    # In the second epoch.
    fails = StopAt(len(SIZES) + 2, RuntimeError("power cut"))

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    model = ours(tail=tail)
    with pytest.raises(RuntimeError, match="power cut"):
        fit(model, SIZES, epochs=3, callbacks=[backup(), fails])
    if again == "new model":
        model = ours(tail=tail)
    fit(model, SIZES, epochs=3, callbacks=[backup()])
    assert_same(model, undisturbed.get_weights())
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
    assert_same(loaded, model.get_weights())
    assert_updates(loaded, KEPT[:2])


def test_weights_go_to_and_from_plain_models(tmp_path):
    model = ours(tail="keep")
    fit(model, SIZES)
    plain = compiled(NAME, keras.Model, sgd())
    plain.optimizer.build(plain.trainable_variables)
    model.save_weights(tmp_path / "ours.weights.h5")
    plain.load_weights(tmp_path / "ours.weights.h5")
    assert_same(plain, model.get_weights())
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
    assert_same(model, before)


@pytest.mark.parametrize("name", ["steps", "microbatch_size"])
@pytest.mark.parametrize(
    "value", [0, -1, 1.5, True, np.True_, np.float32(4), "4"]
)
def test_bad_numbers(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` expected a positive int"):
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
    with pytest.raises(ValueError, match="`tail` expected one of 'apply'"):
        kpg.Accumulated(tail=tail)
