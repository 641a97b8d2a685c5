"""The callback without an accelerator; tests/placement has one."""

import types

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.placement import device_placement
from keras_pergrad.placement import report as reports
from tests.metal_stub import models

KEYS = {"ops_on_accelerator", "ops_on_cpu", "device_copies"}


def train(model, x, y, *callbacks, **options):
    options.setdefault("verbose", 0)
    return model.fit(x, y, callbacks=list(callbacks), **options)


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_machine_without_accelerator_gets_a_short_report(
    system, capsys, monkeypatch
):
    here = types.SimpleNamespace(platform=system)
    monkeypatch.setattr(reports, "sys", here)
    placement = DevicePlacement()
    history = train(*models.make("dense"), placement)
    report = placement.report
    assert (report.device, report.platform) == (None, "CPU")
    assert set(report.variables) == {"CPU:0"}
    assert report.ops_on_accelerator == report.device_copies == 0
    assert report.ops_on_cpu > 50
    assert report.hazards == []
    assert set(history.history) >= KEYS
    printed = capsys.readouterr().out
    assert "the CPU only" in printed
    assert ("keras_pergrad doctor" in printed) == (system == "darwin")
    assert len(printed.strip().splitlines()) == 3 + (system == "darwin")


def test_those_who_read_the_logs_have_all(tmp_path):
    readers = [keras.callbacks.CSVLogger(tmp_path / "log.csv")]
    train(*models.make("dense"), *readers, DevicePlacement())
    head = (tmp_path / "log.csv").read_text().splitlines()[0]
    assert set(head.split(",")) >= KEYS


@pytest.mark.parametrize("verbose", [1, 2])
def test_the_progress_bar_shows_no_constants(capsys, verbose):
    made = models.make("dense")
    history = train(*made, DevicePlacement(), epochs=2, verbose=verbose)
    assert set(history.history) >= KEYS
    printed = capsys.readouterr().out
    assert "loss: " in printed
    assert not any(key in printed for key in KEYS)


def test_runs_equal_those_of_a_trace_but_in_loops():
    placement = DevicePlacement(deep=True)
    train(*models.make("rnn"), placement)
    counted = placement.report.executions("cpu")
    traced = placement.report.deep.executions["CPU:0"]
    known = {op for op, runs in counted.items() if runs and op in traced}
    # What Keras hands out of a step is outside of the copy.
    assert {op: counted[op] for op in known} == {op: traced[op] for op in known}
    assert len(known) > 10
    assert counted["Tanh"] is None
    assert traced["Tanh"] > 2
    assert "in a loop or branch" in str(placement.report)


def test_the_first_batch_is_trained_on_when_it_is_measured():
    finals = []
    for deep in (False, True):
        model, x, y = models.make("dense")
        x, y = np.tile(x, (3, 1))[:20], np.tile(y, 3)[:20]
        weights = np.random.default_rng(0)
        model.set_weights(
            [weights.normal(size=w.shape) for w in model.get_weights()]
        )
        placement = DevicePlacement(deep=deep)
        train(model, x, y, placement, batch_size=8, shuffle=False)
        assert (placement.report.deep is not None) == deep
        finals.append(model.get_weights())
    for plain, measured in zip(*finals):
        np.testing.assert_array_equal(plain, measured)


def test_every_fit_reports_and_leaves_no_wrapper():
    placement = DevicePlacement()
    model, x, y = models.make("dense")
    train(model, x, y, placement)
    function, first = model.train_function, placement.report
    train(model, x, y, placement)
    assert model.train_function is function
    assert placement.report is not first
    assert placement.report.ops_on_cpu == first.ops_on_cpu


def test_placing_costs_at_most_once_more(monkeypatch):
    calls = []
    original = device_placement.placed_graphs

    def counted(again):
        calls.append(again)
        return original(again)

    monkeypatch.setattr(device_placement, "placed_graphs", counted)
    model, x, y = models.make("dense", batch=32)
    train(model, x, y, DevicePlacement(), batch_size=4, epochs=2)
    assert calls == [False]
    train(model, x, y, DevicePlacement(), batch_size=4, epochs=2)
    assert calls == [False, True]


def test_nothing_stays_patched_when_a_step_raises():
    from tensorflow.python.eager import context

    class Failing(keras.Model):
        def train_step(self, data):
            raise RuntimeError("on purpose")

    model, x, y = models.make("dense", wrap=Failing)
    options = context.context().function_call_options
    placement = DevicePlacement()
    model.make_train_function()
    function = model.train_function
    with pytest.raises(RuntimeError, match="on purpose"):
        train(model, x, y, placement)
    assert model.train_function is function
    assert context.context().function_call_options is options
    assert placement.report is None


def test_another_callbacks_wrapper_is_kept():
    class Other(keras.callbacks.Callback):
        calls = 0

        def on_train_begin(self, logs=None):
            inner = self.model.train_function

            def outer(iterator):
                self.calls += 1
                return inner(iterator)

            self.model.train_function = outer

    other, placement = Other(), DevicePlacement()
    model, x, y = models.make("dense", batch=12)
    train(model, x, y, placement, other, batch_size=4)
    assert other.calls == 3
    assert placement.report.ops_on_cpu > 50


def test_xla_is_opaque_and_not_counted():
    placement = DevicePlacement(deep=True)
    made = models.make("dense", jit_compile=True)
    history = train(*made, placement)
    assert placement.report.ops_on_cpu is None
    assert not KEYS & set(history.history)
    text = str(placement.report)
    assert "compiled by XLA" in text
    assert "not measured" in text
    assert "ops of one step" not in text


def test_an_eager_step_is_refused():
    model, x, y = models.make("dense", run_eagerly=True)
    with pytest.raises(ValueError, match="run_eagerly=False"):
        train(model, x, y, DevicePlacement())


def test_a_custom_train_step_is_read_like_any_other():
    class Custom(keras.Model):
        def train_step(self, data):
            logs = super().train_step(data)
            return {**logs, "twice": 2 * logs["loss"]}

    placement = DevicePlacement()
    history = train(*models.make("dense", wrap=Custom), placement)
    assert placement.report.ops_on_cpu > 50
    assert "twice" in history.history


def test_a_train_function_that_is_no_tf_function_is_said():
    class Plain(keras.Model):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {"loss": 0.0}

    placement = DevicePlacement()
    train(*models.make("dense", wrap=Plain), placement, steps_per_epoch=2)
    assert placement.report.ops_on_cpu is None
    assert any("no graph" in note for note in placement.report.notes)


@pytest.mark.parametrize(
    "mode", ["batch", "per_sample", "vectorized", "accumulated"]
)
def test_every_gradient_mode(mode):
    placement = DevicePlacement(deep=True)
    made = models.make("dense", wrap=kpg.PerGradModel, gradient_mode=mode)
    history = train(*made, placement)
    assert placement.report.ops_on_cpu > 50
    assert placement.report.deep.step_ms > 0
    assert set(history.history) >= KEYS


def test_under_a_distribution_strategy():
    import tensorflow as tf

    placement = DevicePlacement(deep=True)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        made = models.make("dense")
    history = train(*made, placement)
    assert placement.report.ops_on_cpu > 50
    assert set(history.history) >= KEYS
    assert placement.report.deep is None
    assert any("distributed" in note for note in placement.report.notes)


def test_sequences_of_open_length():
    inputs = keras.Input((None, 4))
    hidden = keras.layers.LSTM(5, use_cudnn=False)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", jit_compile=False)
    placement = DevicePlacement(deep=True)
    x, y = np.ones((8, 6, 4), "float32"), np.ones((8, 1), "float32")
    train(model, x, y, placement)
    counted = placement.report.executions("cpu")
    traced = placement.report.deep.executions["CPU:0"]
    assert counted["AssignSubVariableOp"] == traced["AssignSubVariableOp"]


def test_ops_without_shape_are_read_like_any_other():
    import tensorflow as tf

    class Shapeless(keras.layers.Layer):
        def call(self, x):
            found, _ = tf.unique(tf.reshape(x, [-1]))
            total = tf.numpy_function(
                lambda a: np.float32(a.sum()), [found], tf.float32
            )
            return x + 0.0 * tf.stop_gradient(tf.reshape(total, []))

        def compute_output_shape(self, shape):
            return shape

    inputs = keras.Input((4,))
    hidden = Shapeless()(keras.layers.Dense(3)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    placement = DevicePlacement(deep=True)
    train(model, x, y, placement)
    assert placement.report.executions("cpu")["PyFunc"] == 1
    assert placement.report.deep.executions["CPU:0"]["PyFunc"] == 1
    assert kpg.diagnose.compare_devices(model, x, y, devices=["CPU:0"]).ok
    predicted = kpg.diagnose.predict_placement(model, x, y)
    assert ("PyFunc", "host-only op") in {r[:2] for r in predicted.fallbacks()}


def test_outside_of_fit_is_refused():
    placement = DevicePlacement()
    model, _, _ = models.make("dense")
    placement.set_model(model)
    with pytest.raises(ValueError, match="Expected a model in fit"):
        placement.on_train_begin()
