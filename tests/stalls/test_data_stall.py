"""DataStall against clocks in the loader and the step."""

import csv
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import DataStall
from tests.stalls import recorded_stalls
from tests.stalls.stall_truth import (
    BATCH,
    SPEC,
    Clock,
    Loader,
    TimedStepModel,
    no_hidden_prefetch,
    sleeper,
)

pytestmark = [
    # Keras warns of its own habits with unknown lengths and data kinds.
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

N = 16
STEP = 0.004
PATTERNS = {
    "0 ms": [0.0] * N,
    "10 ms": [0.01] * N,
    "50 ms": [0.05] * N,
    "bursty": [0.06 if i % 5 == 4 else 0.0 for i in range(N)],
    "only the first": [0.3] + [0.0] * (N - 1),
}


def from_generator(load, hidden=False):
    dataset = tf.data.Dataset.from_generator(
        lambda: (load(i) for i in range(N)), output_signature=SPEC
    )
    return dataset if hidden else no_hidden_prefetch(dataset)


def mapped(load):
    def call(i):
        return tf.numpy_function(lambda i: load(int(i)), [i], [tf.float32] * 2)

    def shaped(x, y):
        return tf.ensure_shape(x, (None, 3)), tf.ensure_shape(y, (None, 1))

    return no_hidden_prefetch(tf.data.Dataset.range(N).map(call).map(shaped))


KINDS = {
    "from_generator": from_generator,
    "map": mapped,
    "prefetch": lambda load: mapped(load).prefetch(2),
    "PyDataset": lambda load: Loader(load, N),
    "PyDataset threads": lambda load: Loader(load, N, workers=2),
    "generator": lambda load: (load(i) for i in range(N)),
}
# Batches that Keras loads to learn the shapes, before training begins.
PEEKED = {"PyDataset": 2, "PyDataset threads": 2}


def compiled(clock, step=STEP, **settings):
    model = TimedStepModel(clock, step)
    model.compile("sgd", "mse", **{"jit_compile": False, **settings})
    return model


def small(**settings):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **{"jit_compile": False, **settings})
    return model


def batches(n):
    return tf.data.Dataset.from_tensors(BATCH).repeat(n)


def assert_true_stall(run, attempts=4, allowed=0.0002):
    """`run` gives the measured stall, its true bounds, and the waits' number.

    The clocks are read by threads that a busy machine may hold up between
    the event and the reading, so a miss is measured again; the tolerance is
    never widened.
    """
    misses = []
    for _ in range(attempts):
        measured, (least, most), waits = run()
        below = max(0.05 * least, allowed * waits)
        above = max(0.05 * most, allowed * waits)
        if least - below <= measured <= most + above:
            return
        misses.append((measured, least, most))
    raise AssertionError(f"(measured, least, most) off each time: {misses}")


def fit_stall(kind, seconds, **settings):
    def run():
        clock, stall = Clock(), DataStall(warn_above=1)
        data = KINDS[kind](sleeper(clock, seconds))
        compiled(clock, **settings).fit(
            data, verbose=0, callbacks=[stall, clock]
        )
        report = stall.reports[0]
        assert report.steps == len(clock.step_ends) == N
        truth = clock.bounds(PEEKED.get(kind, 0))
        return report.data_stall_s, truth, N - 1

    return run


@pytest.mark.timing
@pytest.mark.parametrize(
    ("kind", "pattern", "settings"),
    [
        ("map", "0 ms", {}),
        ("map", "bursty", {}),
        ("map", "10 ms", {"steps_per_execution": 8}),
        ("map", "10 ms", {"run_eagerly": True}),
        ("from_generator", "10 ms", {}),
        ("prefetch", "10 ms", {}),
        ("PyDataset threads", "10 ms", {}),
        ("generator", "10 ms", {"steps_per_execution": 8}),
    ],
)
def test_the_stall_lies_between_the_clocks(kind, pattern, settings):
    assert_true_stall(fit_stall(kind, PATTERNS[pattern], **settings))


def test_a_slow_first_batch_is_kept_apart():
    clock = Clock()
    data = mapped(sleeper(clock, PATTERNS["only the first"]))
    stall = DataStall(warn_above=1)
    compiled(clock).fit(data, verbose=0, callbacks=[stall])
    report = stall.reports[0]
    assert report.first_batch_s >= 0.3
    # It came before the steps began: the stall is within what they left.
    assert report.data_stall_s <= clock.step_ends[-1] - clock.step_begins[0]
    assert report.tracing_s > 0


def test_logs_reach_history_and_validation_is_apart():
    clock = Clock()
    stall = DataStall(warn_above=1)
    history = compiled(clock).fit(
        batches(4),
        epochs=2,
        validation_data=mapped(sleeper(Clock(), [0.02] * N)),
        verbose=0,
        callbacks=[stall],
    )
    for key in ("data_stall_s", "data_stall_fraction", "step_ms"):
        assert len(history.history[key]) == 2
    for report in stall.reports:
        assert report.validation_stall_s >= 0.02 * N
        assert report.validation_s >= report.validation_stall_s
    # Of the training there is no more than what its own steps left.
    validated = sum(report.validation_stall_s for report in stall.reports)
    stalled = sum(report.data_stall_s for report in stall.reports)
    steps = clock.step_ends[-1] - clock.step_begins[0]
    assert stalled <= steps - validated


def slept_in(clock):
    """Seconds of loading after the first batch: no step could hide them."""
    pairs = zip(clock.begun[1:], clock.ready[1:])
    return sum(ready - begun for begun, ready in pairs)


@pytest.mark.parametrize(
    ("run_eagerly", "evaluate"), [(False, False), (True, False), (False, True)]
)
def test_a_loader_that_begins_when_asked_is_waited_for(run_eagerly, evaluate):
    clock, stall = Clock(), DataStall(warn_above=1)
    model = compiled(clock, run_eagerly=run_eagerly)
    run = model.evaluate if evaluate else model.fit
    data = mapped(sleeper(clock, PATTERNS["50 ms"]))
    run(data, verbose=0, callbacks=[stall, clock])
    (report,) = stall.reports
    assert report.steps == N
    # All of the sleep, and no more than what the steps left.
    assert slept_in(clock) <= report.data_stall_s
    loop = clock.step_ends[-1] - clock.step_begins[0]
    assert report.data_stall_s <= loop - (N - 1) * STEP
    assert 0 < report.data_stall_fraction < 1
    assert report.step_ms >= 1e3 * STEP


AHEAD = ["prefetch", "PyDataset", "PyDataset threads", "generator"]


@pytest.mark.parametrize("kind", AHEAD)
def test_loading_beside_steps_counts_no_step_as_stall(kind):
    clock, stall = Clock(), DataStall(warn_above=1)
    data = KINDS[kind](sleeper(clock, [0.005] * N))
    compiled(clock, 0.01).fit(data, verbose=0, callbacks=[stall, clock])
    (report,) = stall.reports
    assert report.steps == N
    assert report.step_ms >= 10
    assert report.data_stall_s <= clock.bounds(PEEKED.get(kind, 0))[1]


@pytest.mark.parametrize(
    "mode", ["batch", "per_sample", "vectorized", "accumulated"]
)
def test_every_gradient_mode_is_timed(mode):
    inputs = keras.layers.Input((3,))
    model = kpg.PerGradModel(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", jit_compile=False, gradient_mode=mode)
    clock, stall = Clock(), DataStall(warn_above=1)
    data = mapped(sleeper(clock, PATTERNS["10 ms"]))
    model.fit(data, verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == N
    assert stall.reports[0].data_stall_s >= slept_in(clock)
    assert stall.reports[0].step_ms > 0


def test_an_iterator_that_goes_on_has_no_first_batch():
    stall = DataStall(warn_above=1)
    small().fit(
        batches(-1), steps_per_epoch=4, epochs=2, verbose=0, callbacks=[stall]
    )
    first, second = stall.reports
    assert first.first_batch_s is not None
    assert second.first_batch_s is None
    assert (first.steps, second.steps) == (4, 4)


def test_xla_and_last_partial_batch():
    x, y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")
    stall = DataStall(warn_above=1)
    small(jit_compile=True).fit(
        x, y, batch_size=4, epochs=2, verbose=0, callbacks=[stall]
    )
    assert [r.steps for r in stall.reports] == [3, 3]


@pytest.mark.parametrize(
    ("run_eagerly", "steps_per_execution"), [(False, 1), (False, 3), (True, 1)]
)
def test_training_is_bit_identical(run_eagerly, steps_per_execution):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(18, 3)).astype("float32")

    def train(callbacks):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.layers.Dense(8, activation="relu"),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        model.compile(
            "adam",
            "mse",
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
        )
        # A threshold of 0 makes the callback look into the pipeline, too.
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        data = data.shuffle(40).map(lambda x, y: (x * 2, y)).batch(4)
        model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
        return model.get_weights()

    for plain, timed in zip(train([]), train([DataStall(warn_above=0)])):
        np.testing.assert_array_equal(plain, timed)


def test_the_step_is_not_traced_again():
    traces = []

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            traces.append(1)
            return super().train_step(data)

    model = Counting()
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(batches(3), verbose=0)
    before = len(traces)
    for _ in range(2):
        model.fit(batches(3), verbose=0, callbacks=[DataStall(warn_above=1)])
    model.fit(batches(3), verbose=0)
    assert len(traces) == before


def test_memory_does_not_grow_with_steps():
    stall = DataStall(warn_above=1, per_batch=True)
    small(steps_per_execution=50).fit(
        batches(3000), verbose=0, callbacks=[stall]
    )
    report = stall.reports[0]
    assert report.steps == 3000
    first, wait, _ = stall._timeline.arrays()
    assert len(first) <= 512
    assert len(wait) == len(first)
    assert report.wait_p50_ms <= report.wait_p95_ms <= report.wait_p99_ms
    assert report.wait_p99_ms <= report.wait_longest_ms


def test_a_model_is_freed_after_it_was_timed():
    def trained():
        model = small()
        model.fit(batches(3), verbose=0, callbacks=[DataStall(warn_above=1)])
        model.evaluate(batches(2), verbose=0, callbacks=[DataStall()])
        return weakref.ref(model)

    model = trained()
    keras.backend.clear_session()
    gc.collect()
    assert model() is None


def test_executions_longer_than_the_log_are_recorded():
    stall = DataStall(warn_above=1)
    model = small(steps_per_execution=600)
    model.fit(batches(1300), verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 1300
    model.evaluate(batches(1300), verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 1300


def test_longest_wait_names_its_step():
    seconds = [0.0] * N
    seconds[11] = 0.2
    stall, clock = DataStall(warn_above=1, per_batch=True), Clock()
    compiled(clock, 0).fit(
        mapped(sleeper(clock, seconds)), verbose=0, callbacks=[stall]
    )
    (report,) = stall.reports
    # It is 11, unless a busy machine held up another one for longer.
    step = report.wait_longest_step
    gap = clock.step_begins[step] - clock.step_ends[step - 1]
    assert 200 <= report.wait_longest_ms <= 1e3 * gap


def test_two_callbacks_agree():
    one, two = DataStall(warn_above=1), DataStall(warn_above=1)
    model = small()
    model.fit(batches(6), verbose=0, callbacks=[one, two])
    assert one.reports[0].data_stall_s == two.reports[0].data_stall_s
    assert one.reports[0].steps == 6
    model.fit(batches(5), verbose=0, callbacks=[two])
    assert two.reports[0].steps == 5
    assert one.reports[0].steps == 6


class Raises(keras.callbacks.Callback):
    def __init__(self, hook, error):
        super().__init__()
        self.set_hook(hook, error)

    def set_hook(self, hook, error):
        def raising(*args, **kwargs):
            raise error("stop here")

        setattr(self, hook, raising)


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("on_train_batch_begin", RuntimeError),
        ("on_train_batch_begin", KeyboardInterrupt),
        ("on_train_batch_end", RuntimeError),
        ("on_epoch_end", RuntimeError),
        ("on_test_batch_begin", KeyboardInterrupt),
    ],
)
def test_train_function_is_restored_after_errors(hook, error):
    model = small()
    model.fit(batches(2), validation_data=batches(2), verbose=0)
    before = model.train_function, model.test_function
    with pytest.raises(error, match="stop here"):
        model.fit(
            batches(4),
            validation_data=batches(2),
            verbose=0,
            callbacks=[DataStall(), Raises(hook, error)],
        )
    assert (model.train_function, model.test_function) == before
    stall = DataStall(warn_above=1)
    model.fit(batches(4), verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 4
    assert (model.train_function, model.test_function) == before


def test_a_callback_list_of_the_user_is_left_as_it_was():
    model, begun = small(), []

    class Notes(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            # The call is armed behind all hooks, wherever they stand.
            begun.append(hasattr(model.train_function, "restore"))

    mine = [DataStall(warn_above=1), Notes(), DataStall(warn_above=1)]
    both = keras.callbacks.CallbackList(
        [*mine, Notes()], add_history=True, model=model
    )
    before = list(both.callbacks)
    model.fit(batches(3), verbose=0, callbacks=both)
    model.evaluate(batches(3), verbose=0, callbacks=both)
    assert both.callbacks == before
    assert [stall.reports[0].steps for stall in (mine[0], mine[2])] == [3, 3]
    assert begun == [False] * 6
    for hook in ("on_train_batch_end", "on_epoch_end"):
        both.callbacks[:] = [*before, Raises(hook, RuntimeError)]
        both.set_model(model)
        with pytest.raises(RuntimeError, match="stop here"):
            model.fit(batches(3), verbose=0, callbacks=both)
        assert both.callbacks[:-1] == before
    # One that raises before the armed call, too, after the next fit.
    both.callbacks[-1] = Raises("on_train_batch_begin", RuntimeError)
    with pytest.raises(RuntimeError, match="stop here"):
        model.fit(batches(3), verbose=0, callbacks=both)
    both.callbacks.remove(both.callbacks[len(before)])
    model.fit(batches(3), verbose=0, callbacks=both)
    assert both.callbacks == before


def test_data_that_raises_is_reported_and_the_error_unchanged():
    def load():
        for i in range(5):
            if i == 4:
                raise OSError("the disk is gone")
            yield BATCH

    data = tf.data.Dataset.from_generator(load, output_signature=SPEC)
    model = small()
    stall = DataStall(warn_above=1)
    with pytest.raises(tf.errors.OpError, match="the disk is gone"):
        model.fit(no_hidden_prefetch(data), verbose=0, callbacks=[stall])
    assert stall.reports[0].steps == 4
    assert not hasattr(model.train_function, "restore")


def test_interrupt_inside_a_step_is_reported():
    class Interrupted(TimedStepModel):
        def train_step(self, data):
            if len(self.stall_clock.step_ends) == 3:
                raise KeyboardInterrupt("stop here")
            return super().train_step(data)

    model = Interrupted(Clock(), 0)
    model.compile("sgd", "mse", run_eagerly=True)
    stall = DataStall(warn_above=1)
    with pytest.raises(KeyboardInterrupt, match="stop here"):
        model.fit(batches(6), verbose=0, callbacks=[stall])
    # The fourth batch had arrived when its step was interrupted.
    assert stall.reports[0].steps == 4


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("steps", [None, 4])
def test_a_dataset_without_a_batch_goes_as_it_does_in_keras(steps):
    def outcome(callbacks):
        settings = {"steps_per_epoch": steps, "verbose": 0}
        try:
            history = small().fit(batches(0), callbacks=callbacks, **settings)
        except ValueError as error:
            return str(error)
        return history.history

    stall = DataStall(warn_above=0)
    assert outcome([stall]) == outcome([])
    assert stall.message is None
    for report in stall.reports:
        assert (report.steps, report.data_stall_s) == (0, None)


def test_a_dataset_that_ends_at_once():
    stall = DataStall()
    model = small()
    model.fit(batches(1), verbose=0, callbacks=[stall])
    report = stall.reports[0]
    assert report.steps == 1
    assert report.data_stall_s is None
    assert report.data_stall_fraction is None
    assert stall.message is None


def test_an_infinite_dataset_without_steps_can_be_stopped():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 4

    stall = DataStall(warn_above=1)
    small().fit(batches(-1), verbose=0, callbacks=[stall, Stop()])
    assert stall.reports[0].steps == 5


@pytest.mark.parametrize("share", [np.float32(0.5), np.int64(0), 1])
def test_thresholds_may_be_any_real_number(share):
    assert DataStall(warn_above=share).warn_above == share


@pytest.mark.parametrize("bad", [-0.1, 1.5, "5 %", None, True, float("nan")])
def test_bad_thresholds_are_refused(bad):
    with pytest.raises(ValueError, match=r"number from 0 to 1\. Received"):
        DataStall(warn_above=bad)


def test_those_who_read_the_logs_have_all(tmp_path):
    """They stand before it here, and one of them acts in each step."""
    stall, path = DataStall(), tmp_path / "log.csv"
    begun = []
    readers = [
        keras.callbacks.CSVLogger(path),
        keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: begun.append(batch)
        ),
    ]
    history = small().fit(
        batches(N), epochs=2, verbose=0, callbacks=[*readers, stall]
    )
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for name in ("data_stall_s", "data_stall_fraction", "step_ms"):
        written = [float(row[name]) for row in rows]
        assert written == pytest.approx(history.history[name])
    assert [report.steps for report in stall.reports] == [N, N]
    assert len(begun) == 2 * N


@pytest.fixture
def slow_pipeline(monkeypatch):
    """Makes data that is slow in every report."""
    work = {"Map": 0.9, "Range": 0.1}
    recorded_stalls.say(monkeypatch, {"wait_ms": 20, "step_ms": 2}, work=work)
    return lambda: mapped(sleeper(Clock(), [0.0] * N))


def test_the_message_comes_after_the_bar_which_shows_two_figures(
    capsys, tmp_path, slow_pipeline
):
    stall, table = DataStall(), tmp_path / "log.csv"
    loggers = [stall, keras.callbacks.CSVLogger(str(table))]
    model = small()
    both = keras.callbacks.CallbackList(
        loggers,
        add_history=True,
        add_progbar=True,
        model=model,
        epochs=2,
        verbose=2,
        steps=None,
    )
    before = list(both.callbacks)
    model.fit(slow_pipeline(), epochs=2, callbacks=both)
    assert both.callbacks == before
    printed = capsys.readouterr().out
    assert printed.count(stall.message) == 1
    bar, after = printed.split(stall.message)
    assert "data_stall_fraction" in bar
    assert "step_ms" in bar
    assert "\nDataStall" in f"{bar}DataStall"
    assert "Epoch 1/2" not in after
    for hidden in ("data_stall_s", "step_fraction", "stall_transform"):
        assert hidden not in printed
        assert hidden in table.read_text()
        assert any(hidden in name for name in model.history.history)
    shares = [
        model.history.history[name]
        for name in (
            "step_fraction",
            "stall_load_fraction",
            "stall_transform_fraction",
        )
    ]
    np.testing.assert_allclose(np.sum(shares, 0), [1.0, 1.0])


def test_tensorboard_gets_the_shares(tmp_path, slow_pipeline):
    pytest.importorskip("tensorboard")
    board = keras.callbacks.TensorBoard(str(tmp_path))
    small().fit(
        slow_pipeline(),
        verbose=0,
        callbacks=[DataStall(warn_above=1), board],
    )
    (file,) = tmp_path.glob("train/events*")
    events = b"".join(
        record.numpy() for record in tf.data.TFRecordDataset(str(file))
    )
    for name in (b"step_fraction", b"stall_load_fraction", b"step_ms"):
        assert b"epoch_" + name in events


def test_a_small_stall_brings_no_word(capsys, monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 0.19, "step_ms": 0.1})
    stall = DataStall(warn_above=1e-6)
    small().fit(batches(20), verbose=0, callbacks=[stall])
    assert stall.message is None
    assert capsys.readouterr().out == ""


def test_quiet_and_verbose(capsys, slow_pipeline):
    stall = DataStall(verbose=0)
    small().fit(slow_pipeline(), verbose=0, callbacks=[stall])
    assert stall.message is not None
    assert capsys.readouterr().out == ""
    stall = DataStall(warn_above=1, verbose=2)
    small().fit(slow_pipeline(), verbose=0, callbacks=[stall])
    printed = capsys.readouterr().out
    assert "ms/element" in printed
    assert "<- bottleneck" in printed
    assert "AUTOTUNE may use" in printed
    assert "map(call)" in [row.name for row in stall.stages]
    assert sum(row.share for row in stall.stages) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"0, 1 or 2\. Received: verbose=3"):
        DataStall(verbose=3)


def test_epochs_are_drawn_by_cause(slow_pipeline):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    stall = DataStall(warn_above=1)
    with pytest.raises(ValueError, match="epochs measured=0"):
        stall.plot()
    small().fit(slow_pipeline(), epochs=3, verbose=0, callbacks=[stall])
    axes = stall.plot()
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert labels == ["step", "load", "transform"]
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches[-3:]]
    np.testing.assert_allclose(tops, 1.0)
    with pytest.raises(ValueError, match=r'"epoch" or "batch"\. Received'):
        stall.plot(by="step")
    pyplot.close("all")


def test_plot_needs_batches_and_draws_them():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    stall = DataStall(warn_above=1)
    with pytest.raises(ValueError, match="per_batch=True"):
        stall.plot(by="batch")
    stall = DataStall(warn_above=1, per_batch=True)
    small().fit(batches(8), verbose=0, callbacks=[stall])
    axes = stall.plot()
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert labels == ["compute", "wait for data"]
    pyplot.close("all")
