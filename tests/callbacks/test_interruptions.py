"""A fit that is interrupted anywhere leaves a model as if never watched."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import assert_equal, compiled, net, trained

X = np.random.default_rng(0).normal(size=(16, 5)).astype("float32")
Y = X[:, :3] * 2
MODES = {
    "batch": lambda: "batch",
    "vectorized": lambda: kpg.Vectorized(kpg.ClippedMean(0.5)),
    "per_sample": lambda: kpg.PerSample(kpg.ClippedMean(0.5)),
    "accumulated": lambda: kpg.Accumulated(steps=4, tail="drop"),
}
CALLBACKS = {
    "none": list,
    "variance": lambda: [kpg.callbacks.GradientVariance(probe=(X, Y))],
    "stall": lambda: [kpg.callbacks.DataStall(verbose=0)],
    "placement": lambda: [kpg.callbacks.DevicePlacement(warn=False)],
    "all": lambda: [
        kpg.callbacks.DevicePlacement(warn=False),
        kpg.callbacks.DataStall(verbose=0),
        kpg.callbacks.GradientVariance(probe=(X, Y)),
    ],
}
PLACES = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_end",
    "on_epoch_end",
    "on_train_end",
    "data",
)
QUICK = [
    ("batch", "variance"),
    ("vectorized", "all"),
    ("per_sample", "placement"),
    ("accumulated", "stall"),
]


@pytest.fixture(autouse=True)
def _iterators_that_end_at_once(monkeypatch):
    """Nothing tunes the iterators, which outlive an interrupted fit.

    Whoever frees an iterator waits for the thread that tunes it, now and then
    about as long as the iterator is old (seen: up to a minute).
    """
    iterate = tf.data.Dataset.__iter__
    options = tf.data.Options()
    options.autotune.enabled = False
    monkeypatch.setattr(
        tf.data.Dataset,
        "__iter__",
        lambda dataset: iterate(dataset.with_options(options)),
    )


class Stop(keras.callbacks.Callback):
    """Raises in one hook: the second batch, where it is one of a batch."""

    def __init__(self, place, error):
        super().__init__()

        def hook(number=None, logs=None):
            if "batch" not in place or number == 1:
                raise error

        if place != "data":
            setattr(self, place, hook)


def make(mode, cls=kpg.PerGradModel):
    model = net(shape=(5,), cls=cls, seed=3)
    mode = None if mode is None else MODES[mode]()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    compiled(model, mode, optimizer=optimizer, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def data(fails=False):
    """Batches of four; with `fails` the third is none."""
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    if not fails:
        return whole

    def checked(x, y):
        check = tf.debugging.Assert(tf.reduce_all(x != X[8]), ["no data"])
        with tf.control_dependencies([check]):
            return tf.identity(x), y

    return whole.map(checked)


def fit(model, *callbacks, fails=False):
    validation = {"validation_data": (X, Y), "validation_batch_size": 4}
    trained(model, data(fails), callbacks=list(callbacks), **validation)
    return model.history


def interrupt(model, place, watchers):
    """Interrupt a fit; return the error, which holds all of its frames."""
    error = RuntimeError("stopped") if place == "on_test_begin" else None
    stop = Stop(place, error or KeyboardInterrupt())
    stops = KeyboardInterrupt, RuntimeError, tf.errors.InvalidArgumentError
    with pytest.raises(stops) as caught:
        fit(model, *watchers, stop, fails=place == "data")
    return caught


def assert_never_watched(model, mode):
    """Nothing of a callback is left on the model."""
    function = model.train_function
    assert function is None or function.__module__.startswith("keras.")
    if mode is not None:
        assert model.gradient_mode is mode
        assert not model.step_options.is_watched
        assert not model.step_options.readers
    assert "fit" not in vars(model)


@pytest.mark.parametrize(
    ("mode", "watch"), few([(m, w) for m in MODES for w in CALLBACKS], QUICK)
)
def test_interrupted_anywhere(mode, watch):
    """All places, one after the other, with a model and with its twin.

    The twin is interrupted at the same places without being watched.
    """
    model, twin = make(mode), make(mode)
    own, eager = model.gradient_mode, tf.config.functions_run_eagerly()
    for place in PLACES:
        held = interrupt(model, place, CALLBACKS[watch]())
        assert_never_watched(model, own)
        assert tf.config.functions_run_eagerly() == eager
        interrupt(twin, place, [])
        assert_equal(model, twin)
        del held
    found, expected = fit(model), fit(twin)
    assert set(found.history) == set(expected.history)
    assert_equal(model, twin)


@pytest.mark.parametrize("watch", few(CALLBACKS, ["variance", "stall"]))
def test_the_same_callbacks_again_after_each_place(watch, capsys):
    model, watchers = make("vectorized"), CALLBACKS[watch]()
    for place in PLACES:
        interrupt(model, place, watchers)
        logs = fit(model, *watchers).history
        for name, watcher in (
            ("gradient_norm", kpg.callbacks.GradientVariance),
            ("step_ms", kpg.callbacks.DataStall),
            ("ops_on_cpu", kpg.callbacks.DevicePlacement),
        ):
            there = any(isinstance(w, watcher) for w in watchers)
            assert (name in logs) == there


@pytest.mark.parametrize("place", ["on_epoch_begin", "on_train_batch_end"])
def test_a_plain_model_is_left_when_a_callback_raises(place, capsys):
    """Its fit belongs to Keras, so only its callback list tells of the end.

    A session keeps the last traceback, and with it the list: it is held here.
    """
    model, twin = make(None, keras.Model), make(None, keras.Model)
    held = interrupt(model, place, CALLBACKS["all"]())
    assert_never_watched(model, None)
    interrupt(twin, place, [])
    assert held.value.__traceback__ is not None
    capsys.readouterr()
    fit(model), fit(twin)
    assert_never_watched(model, None)
    assert_equal(model, twin)
    assert capsys.readouterr().out == ""


def test_compiled_again_after_an_interruption():
    """The mode of the last compile() counts, whenever the list is freed."""
    model = make("vectorized")
    watch = kpg.callbacks.GradientVariance(probe=(X, Y))
    held = interrupt(model, "on_train_batch_end", [watch])
    mode = kpg.Vectorized(kpg.ClippedMean(1e-3))
    model.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
    del held
    sys.last_value = None
    assert model.gradient_mode is mode
    before = model.get_weights()
    fit(model, watch)
    assert model.gradient_mode is mode
    pairs = zip(before, model.get_weights(), strict=True)
    length = np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs))
    assert 0 < length <= 4 * 1.001e-3


def test_compiled_again_within_the_fit():
    """Also by a callback, while the watch is open."""
    model = make("vectorized")
    mode = kpg.Vectorized(kpg.ClippedMean(1e-3))

    class Compiles(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.compile("sgd", "mse", gradient_mode=mode)

    watch = kpg.callbacks.GradientVariance(probe=(X, Y))
    fit(model, watch, Compiles())
    assert model.gradient_mode is mode


def test_an_error_inside_a_watch_is_raised():
    model = make("vectorized")
    mode = kpg.Vectorized()

    def fail():
        with model.watch_gradients():
            model.compile("sgd", "mse", gradient_mode=mode)
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert model.gradient_mode is mode
