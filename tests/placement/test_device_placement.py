"""The callback without an accelerator; test_on_stand_in.py has one."""

import contextlib
import types
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import DevicePlacement
from keras_pergrad.placement import device_placement
from keras_pergrad.placement import report as report_module
from tests.metal_stub import models
from tests.models.making import assert_equal, compiled, net, trained

KEYS = {"ops_on_accelerator", "ops_on_cpu", "device_copies"}


def train(made, *callbacks, **options):
    """Return the names in the logs."""
    model = trained(*made, callbacks=callbacks, **options)
    return set(model.history.history)


def reported(made, *callbacks, deep=False, **options):
    """Return the report of a training, and the names in the logs."""
    placement = DevicePlacement(deep=deep)
    names = train(made, placement, *callbacks, **options)
    return placement.report, names


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_machine_without_accelerator_gets_a_short_report(
    system, capsys, monkeypatch
):
    here = types.SimpleNamespace(platform=system)
    monkeypatch.setattr(report_module, "sys", here)
    report, names = reported(models.make("dense"))
    assert (report.device, report.platform) == (None, "CPU")
    assert set(report.variables) == {"CPU:0"}
    assert report.ops_on_accelerator == report.device_copies == 0
    assert report.ops_on_cpu > 50
    assert report.hazards == []
    assert names >= KEYS
    printed = capsys.readouterr().out
    assert "the CPU only" in printed
    assert ("keras_pergrad doctor" in printed) == (system == "darwin")
    assert len(printed.strip().splitlines()) == 3 + (system == "darwin")


@pytest.mark.parametrize("verbose", [1, 2])
def test_all_who_read_the_logs_have_the_figures(capsys, tmp_path, verbose):
    table = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    callbacks = table, DevicePlacement()
    made = models.make("dense")
    assert train(made, *callbacks, epochs=2, verbose=verbose) >= KEYS
    head = (tmp_path / "log.csv").read_text().splitlines()[0]
    assert set(head.split(",")) >= KEYS
    printed = capsys.readouterr().out
    assert "loss: " in printed
    assert all(f"{key}: " in printed for key in KEYS)


def open_sequences():
    """An LSTM for sequences of any length, and a batch."""
    lstm = keras.layers.LSTM(5, use_cudnn=False)
    model = net(lstm, shape=(None, 4), units=1)
    x, y = np.ones((8, 6, 4), "float32"), np.ones((8, 1), "float32")
    return compiled(model, jit_compile=False), x, y


@pytest.mark.parametrize(
    "make", [lambda: models.make("rnn"), open_sequences], ids=["rnn", "open"]
)
def test_ops_in_loops_are_counted_once_and_their_runs_measured(make):
    report, _ = reported(make(), deep=True)
    counted = report.counts("cpu")
    traced = report.deep.executions["CPU:0"]
    # What Keras hands out of a step is outside of the copy.
    alike = {op for op in traced if counted.get(op) == traced[op]}
    assert "AssignSubVariableOp" in alike
    assert len(alike) > 10
    assert 0 < counted["Tanh"] < traced["Tanh"]
    text = " ".join(str(report).split())
    assert "in a loop or branch are counted once" in text


def test_the_first_batch_is_trained_on_when_it_is_measured():
    finals = []
    for deep in (False, True):
        made = models.make("dense", batch=20)
        report, _ = reported(made, deep=deep, batch_size=8)
        assert (report.deep is not None) == deep
        finals.append(made[0].get_weights())
    assert_equal(*finals)


def test_every_fit_reports_and_places_once_more_at_most(monkeypatch):
    placed = mock.Mock(wraps=device_placement.placed_graphs)
    monkeypatch.setattr(device_placement, "placed_graphs", placed)
    model, x, y = models.make("dense", batch=32)
    placement, reports, functions = DevicePlacement(), [], []
    for _ in range(2):
        train((model, x, y), placement, batch_size=4, epochs=2)
        reports.append(placement.report)
        functions.append(model.train_function)
    assert placed.call_args_list == [mock.call(False), mock.call(True)]
    # No wrapper is left.
    assert functions[0] is functions[1]
    assert reports[0] is not reports[1]
    assert reports[0].ops_on_cpu == reports[1].ops_on_cpu


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
        train((model, x, y), placement)
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

    other = Other()
    report, _ = reported(models.make("dense", batch=12), other, batch_size=4)
    assert other.calls == 3
    assert report.ops_on_cpu > 50


def test_xla_is_opaque_and_not_counted():
    report, names = reported(models.make("dense", jit_compile=True), deep=True)
    assert report.ops_on_cpu is None
    assert not KEYS & names
    text = str(report)
    assert "compiled by XLA" in text
    assert "not measured" in text
    assert "ops of one step" not in text


def test_where_there_is_no_step_to_look_at_it_is_refused():
    with pytest.raises(ValueError, match="run_eagerly=False"):
        reported(models.make("dense", run_eagerly=True))
    placement = DevicePlacement()
    placement.set_model(models.make("dense")[0])
    with pytest.raises(ValueError, match="Expected a model in fit"):
        placement.on_train_begin()


def test_a_train_function_that_is_no_tf_function_is_said():
    class Plain(keras.Model):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {"loss": 0.0}

    report, _ = reported(models.make("dense", wrap=Plain), steps_per_epoch=2)
    assert report.ops_on_cpu is None
    assert any("no graph" in note for note in report.notes)


class Custom(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "twice": 2 * logs["loss"]}


#: Kind of step → what makes a model of it.
STEPS = {
    mode: {"wrap": kpg.PerGradModel, "gradient_mode": mode}
    for mode in ("batch", "per_sample", "vectorized", "accumulated")
} | {"custom": {"wrap": Custom}, "distributed": {}}


@pytest.mark.parametrize("step", STEPS)
def test_every_kind_of_step_is_read(step):
    scope = contextlib.nullcontext()
    if step == "distributed":
        scope = tf.distribute.MirroredStrategy(["CPU:0"]).scope()
    with scope:
        made = models.make("dense", **STEPS[step])
    report, names = reported(made, deep=True)
    assert report.ops_on_cpu > 50
    assert names >= KEYS
    assert ("twice" in names) == (step == "custom")
    if step == "distributed":
        assert report.deep is None
        assert any("distributed" in note for note in report.notes)
    else:
        assert report.deep.step_ms > 0


def shapeless(x):
    found, _ = tf.unique(tf.reshape(x, [-1]))
    total = tf.numpy_function(lambda a: a.sum(), [found], tf.float32)
    return x + 0.0 * tf.stop_gradient(tf.reshape(total, []))


@pytest.mark.quick
def test_ops_without_shape_are_read_like_any_other():
    parts = keras.layers.Dense(3), keras.layers.Lambda(shapeless)
    step = models.stack(*parts)
    report, _ = reported(step, deep=True)
    assert report.counts("cpu")["PyFunc"] == 1
    assert report.deep.executions["CPU:0"]["PyFunc"] == 1
    assert kpg.diagnose.compare_devices(*step, devices=["CPU:0"]).ok
    predicted = kpg.diagnose.predict_placement(*step)
    assert ("PyFunc", "host-only op") in {r[:2] for r in predicted.fallbacks()}


def sines(x):
    for _ in range(4):
        x = tf.sin(x)
    return x


@pytest.mark.parametrize(
    ("options", "way", "what_shows"),
    [
        (
            {"experimental_attributes": {"_noinline": True}},
            "not inlined",
            "no _noinline",
        ),
        ({"jit_compile": True}, "compiled by XLA", "jit_compile=False"),
    ],
)
def test_what_a_call_hides_is_not_counted(options, way, what_shows):
    called = keras.layers.Lambda(tf.function(sines, **options))
    step = models.stack(keras.layers.Dense(3), called, units=None)
    report, names = reported(step, deep=True)
    assert names.isdisjoint(KEYS)
    predicted = kpg.diagnose.predict_placement(*step)
    for found in (report, predicted):
        assert len(found.opaque) == 2  # forward and backward
        assert not found.known
        assert found.ops_on_cpu is found.device_copies is None
        assert found.counts("cpu") is None
        text = " ".join(str(found).split())
        assert way in text
        assert what_shows in text.partition("What shows them:")[2]
        assert "ops of one step" not in text
    assert report.deep is None
    assert "deep=True: not measured" in str(report)
