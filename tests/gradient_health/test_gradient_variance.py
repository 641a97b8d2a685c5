"""The callback in `fit`: what it logs, records, refuses and leaves alone."""

import csv
import gc
import re
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from keras_pergrad.runs import RunRecordWarning, list_runs, read_run
from tests import zoo
from tests.marks import few

layers = keras.layers
PROBE_KEYS = {
    "gradient_norm",
    "gradient_variance",
    "gradient_noise_scale",
    "gradient_snr",
    "gradient_repeat_deviation",
    "bitwise_equal_variables",
}
X, Y, WEIGHTS = zoo.data()
PROBE = X[:6], Y[:6]


def make(maker="sequential", cls=keras.Model, loss=None, **compiling):
    keras.utils.set_random_seed(3)
    model = zoo.MAKERS[maker](cls) if isinstance(maker, str) else maker()
    compiling = {"jit_compile": False, **compiling}
    model.compile(
        "adam",
        loss or "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        **compiling,
    )
    return model


def fit(model, *callbacks, **options):
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options)


def state(model):
    return [np.array(v) for v in [*model.variables, *model.optimizer.variables]]


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        np.testing.assert_array_equal(a, b)


def with_batch_norm():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Flatten(),
            layers.Dense(5),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(3, activation="softmax"),
        ]
    )


def with_mixing():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Flatten(),
            zoo.Centre(),
            layers.Dense(3, activation="softmax"),
        ]
    )


CASES = {
    "dropout, add_loss": ("functional", keras.Model, {}),
    "built late": ("subclassed", keras.Model, {}),
    "batch norm": (with_batch_norm, keras.Model, {}),
    "eager": ("sequential", keras.Model, {"run_eagerly": True}),
    "xla": ("sequential", keras.Model, {"jit_compile": True}),
    "several steps": ("sequential", keras.Model, {"steps_per_execution": 2}),
    "vectorized": (
        "functional",
        kpg.PerGradModel,
        {"gradient_mode": "vectorized"},
    ),
    "clipped, noisy": (
        "sequential",
        kpg.PerGradModel,
        {
            "gradient_mode": lambda: kpg.Vectorized(
                kpg.ClippedMean(0.1, noise_multiplier=1.0, seed=5)
            )
        },
    ),
    "per sample": (
        "sequential",
        kpg.PerGradModel,
        {"gradient_mode": "per_sample"},
    ),
    "accumulated": (
        "sequential",
        kpg.PerGradModel,
        {"gradient_mode": lambda: kpg.Accumulated(2, 4)},
    ),
}


@pytest.mark.parametrize(
    "case", few(CASES, ["eager", "clipped, noisy", "accumulated"])
)
def test_training_is_the_same_to_the_bit(case):
    maker, cls, compiling = CASES[case]
    runs = []
    for watched in (False, True):
        made = {
            k: v() if k == "gradient_mode" and callable(v) else v
            for k, v in compiling.items()
        }
        model = make(maker, cls, **made)
        watch = GradientVariance(every=1)
        history = fit(model, *[watch] * watched, epochs=2)
        runs.append((state(model), history.history))
    assert_same(runs[0][0], runs[1][0])
    for key in set(runs[0][1]):
        assert runs[0][1][key] == runs[1][1][key]
    assert len(watch.measurements) >= 2
    within = {"gradient_variance", "gradient_noise_scale", "gradient_snr"}
    expected = PROBE_KEYS - within if case == "batch norm" else PROBE_KEYS
    found = {k for k in runs[1][1] if "train" not in k} - set(runs[0][1])
    assert found == expected


def test_the_probe_measures_what_the_functions_tell():
    model = make()
    watch = GradientVariance(probe=(X, Y, WEIGHTS))
    logs = fit(model, watch, epochs=2).history
    known = kpg.gradient_statistics(model, X, Y, WEIGHTS)
    assert logs["gradient_norm"][-1] == pytest.approx(known.norm, rel=1e-5)
    assert logs["gradient_variance"][-1] == pytest.approx(
        known.variance, rel=1e-4
    )
    last = watch.measurements[-1]
    each = kpg.gradient_statistics(model, X, Y, WEIGHTS, per_variable=True)
    for k, statistics in enumerate(each):
        assert last.norms[k] == pytest.approx(statistics.norm, rel=1e-4)
        assert last.variances[k] == pytest.approx(statistics.variance, rel=1e-3)
        if statistics.squared_true_norm > 0:
            assert last.noise_scales[k] == pytest.approx(
                statistics.noise_scale, rel=0.01
            )
    assert last.snrs.shape == last.noise_scales.shape == last.norms.shape
    assert last.values == []


def test_the_default_probe_is_the_first_batch():
    found = []
    for probe in (None, (X[:8], Y[:8])):
        watch = GradientVariance(probe=probe)
        fit(make(), watch, epochs=2)
        found.append([m.norm for m in watch.measurements])
    assert found[0] == found[1]
    assert watch.measurements[0].samples == 8


def test_an_epoch_shorter_than_a_batch_of_steps():
    watch = GradientVariance(every=100)
    logs = fit(make(steps_per_execution=8), watch).history
    assert not PROBE_KEYS & set(logs)
    assert watch.measurements == []


def test_every_number_of_updates():
    watch = GradientVariance(probe=PROBE, every=2)
    logs = fit(make(), watch, epochs=3).history  # 3 updates an epoch
    assert watch.steps == [2, 4, 6, 8]
    norms = [m.norm for m in watch.measurements]
    assert logs["gradient_norm"] == [norms[0], norms[2], norms[3]]


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(1, [1, 2, 3]), (5, [2, 3, 5, 6, 8, 9]), (10, [3, 6, 9])],
)
def test_a_short_fit_gives_a_curve(epochs, expected):
    """Each epoch's end, and what ten measurements need between them."""
    watch = GradientVariance(probe=PROBE, repeats=1)
    fit(make(), watch, epochs=epochs)
    assert watch.steps[: len(expected)] == expected
    assert watch.steps[-1] == 3 * epochs


# Keras says so of every such data set, and steps once more than it has batches.
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_batches_without_a_known_number_are_measured_by_epoch():
    def batches():
        for start in (0, 8):
            yield X[start : start + 8], Y[start : start + 8]

    watch = GradientVariance(probe=PROBE, repeats=1)
    data = tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            tf.TensorSpec((None, 6, 6, 1)),
            tf.TensorSpec((None,), tf.int64),
        ),
    )
    model = make()
    model.fit(data, verbose=0, shuffle=False, callbacks=[watch])
    assert watch.steps == [int(model.optimizer.iterations)]


def test_batch_normalization_is_explained_once(capsys):
    watch = GradientVariance(probe=PROBE)
    fit(make(with_batch_norm), watch, epochs=2)
    printed = capsys.readouterr().out
    assert printed.count("no variance within the batch") == 1
    assert "BatchNormalization) makes every sample" in printed
    assert "Arguments received" not in printed
    assert "GroupNormalization" in printed
    assert "gradient_mode=" not in printed  # it trains by "batch" already
    assert len(watch.messages) == 1
    assert watch.measurements[-1].repeat_deviation is not None
    assert watch.measurements[-1].variances is None


@pytest.mark.parametrize("mode", [kpg.Vectorized, kpg.PerSample])
@pytest.mark.parametrize("own", [False, True])
def test_statistics_of_the_training_batches(mode, own):
    model = make(cls=kpg.PerGradModel, gradient_mode=mode(statistics=True))
    expected = fit(model, epochs=2).history
    model = make(cls=kpg.PerGradModel, gradient_mode=mode(statistics=own))
    watch = GradientVariance(probe=PROBE)
    found = fit(model, watch, epochs=2).history
    for name in ("norm", "variance", "noise_scale"):
        np.testing.assert_allclose(
            found[f"train_gradient_{name}"],
            expected[f"gradient_{name}"],
            rtol=1e-3,
        )
    assert found["gradient_norm"][-1] == watch.measurements[-1].norm
    # Afterwards the model is as it was compiled.
    assert not model.gradient_mode.is_watched
    assert ("gradient_norm" in fit(model).history) == own


def test_what_a_model_logs_under_other_names_is_left_alone():
    watch = GradientVariance(probe=PROBE)
    keys = set(fit(make(), watch).history)
    assert keys == {"loss", "accuracy"} | PROBE_KEYS


def test_logs_reach_the_csv_file(tmp_path):
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    fit(make(), GradientVariance(probe=PROBE), log, epochs=2)
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert set(rows[0]) >= PROBE_KEYS


# Records.


def test_a_run_is_recorded(tmp_path):
    model = make(cls=kpg.PerGradModel, gradient_mode="vectorized")
    watch = GradientVariance(
        PROBE, log_dir=tmp_path, tags={"learning": "fast", "fold": 3}
    )
    logs = fit(model, watch, epochs=3).history
    assert list_runs(tmp_path) == [watch.run_directory]
    run = read_run(watch.run_directory)
    # A curve of at least ten points, as far as there are steps.
    assert run.scalars["step"].tolist() == [*range(1, 10)] == watch.steps
    assert run.scalars["epoch"].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    for key in PROBE_KEYS:
        np.testing.assert_array_equal(run.scalars[key][2::3], logs[key])
    assert (run.scalars["loss"] > 0).all()
    norms = np.linalg.norm(run.norms, axis=1)
    expected = run.scalars["gradient_norm"]
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    sums = run.variances.sum(1)
    expected = run.scalars["gradient_variance"]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    sketched = np.linalg.norm(run.sketches, axis=1)
    np.testing.assert_allclose(sketched, norms, rtol=0.15)
    info = run.info
    assert info["seed"] == 3
    assert info["tags"] == {"learning": "fast", "fold": 3}
    assert info["gradient_mode"]["class"] == "Vectorized"
    assert info["optimizer"]["learning_rate"] == pytest.approx(1e-3)
    assert info["device"] == "CPU"
    assert info["probe_samples"] == 6
    assert info["versions"]["keras"] == keras.__version__
    shapes = [list(v.shape) for v in model.trainable_variables]
    assert [v["shape"] for v in info["variables"]] == shapes


def test_equal_runs_have_equal_records_and_fingerprints(tmp_path):
    tf.config.experimental.enable_op_determinism()
    try:
        for cls in (keras.Model, kpg.PerGradModel, keras.Model):
            watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
            fit(make(cls=cls), watch)
            # The name sorts by time and tells the seed.
            assert re.search(r"/\d{8}-\d{6}-seed3-\w+$", watch.run_directory)
    finally:
        from tensorflow.python.framework import config

        config.disable_op_determinism()
    runs = [read_run(path) for path in list_runs(tmp_path)]
    assert len(runs) == 3
    for run in runs[1:]:
        for key in ("architecture", "probe", "machine", "seed"):
            assert run.info[key] == runs[0].info[key]
        np.testing.assert_array_equal(run.sketches, runs[0].sketches)
        assert run.scalars["gradient_repeat_deviation"].tolist() == [0]
        assert run.scalars["bitwise_equal_variables"].tolist() == [6]


def test_another_probe_has_another_fingerprint():
    from keras_pergrad.gradient_health.run_log import fingerprint

    x = np.arange(6, dtype="float32").reshape(3, 2)
    batches = [
        (x, x, None),
        (x, x, np.ones(3)),
        (x, x + 1, None),
        (x.reshape(2, 3), x, None),
        (x.astype("float64"), x, None),
        ({"a": x}, None, None),
        (np.array(["a", "b"], object), None, None),
    ]
    assert len({fingerprint(batch) for batch in batches}) == len(batches)
    assert fingerprint(batches[0]) == fingerprint(batches[0])


def test_an_existing_name_is_refused_before_training(tmp_path):
    options = {"log_dir": tmp_path, "run_name": "mine", "every": "epoch"}
    fit(make(), GradientVariance(PROBE, **options))
    for probe in (PROBE, None):
        model = make()
        before = model.get_weights()
        with pytest.raises(FileExistsError, match="a run 'mine' with 1 rec"):
            fit(model, GradientVariance(probe, **options))
        assert_same(before, model.get_weights())
    assert len(read_run(tmp_path / "mine")) == 1


def test_a_broken_off_run_is_resumed(tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def train(*crash):
        keras.backend.clear_session()
        watch = GradientVariance(
            PROBE, every="epoch", log_dir=tmp_path / "runs", run_name="mine"
        )
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        fit(make(), watch, *crash, backup, epochs=4)
        return watch

    with pytest.raises(KeyboardInterrupt):
        train(Crash())
    # Recorded after epochs 0 to 2; the backup is that of epoch 1.
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunRecordWarning)
        watch = train()
    assert watch.steps == [9, 12]
    run = read_run(tmp_path / "runs" / "mine")
    assert run.scalars["epoch"].tolist() == [0, 1, 2, 3]
    assert run.scalars["step"].tolist() == [3, 6, 9, 12]


def test_those_who_read_the_logs_have_all(tmp_path, capsys):
    """They stand before it here; the progress bar shows two figures."""
    path = tmp_path / "log.csv"
    watch = GradientVariance(PROBE)
    readers = (
        keras.callbacks.CSVLogger(path),
        keras.callbacks.EarlyStopping("gradient_noise_scale", mode="min"),
    )
    mode = kpg.Vectorized(kpg.ClippedMean(1e9), statistics=True)
    model = make(cls=kpg.PerGradModel, gradient_mode=mode)
    history = model.fit(X, Y, verbose=2, callbacks=[*readers, watch]).history
    with path.open() as file:
        written = next(csv.DictReader(file))
    for name in PROBE_KEYS:
        assert float(written[name]) == pytest.approx(history[name][0])
    shown = re.findall(r"(\w+): ", capsys.readouterr().out)
    assert sorted(shown) == [
        "accuracy",
        "clipped_fraction",
        "gradient_noise_scale",
        "gradient_norm",
        "loss",
    ]
    assert history["nonfinite_samples"] == [0.0]
    assert "train_gradient_variance" in history


def test_a_new_name_for_every_fit(tmp_path):
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    model = make()
    fit(model, watch)
    first = watch.run_directory
    fit(model, watch)
    assert watch.run_directory != first
    assert sorted([first, watch.run_directory]) == list_runs(tmp_path)
    assert watch.steps == [6]


def test_a_directory_that_cannot_be_written_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    model = make()
    before = model.get_weights()
    with pytest.raises(OSError, match="`log_dir` expected a directory"):
        fit(model, GradientVariance(log_dir=tmp_path / "file"))
    assert_same(before, model.get_weights())


def test_training_goes_on_when_the_disk_is_full(tmp_path, capsys):
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)

    class Fill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:  # SQLite's own way to say how large it may be
                full = "PRAGMA max_page_count = 1"
                watch._handlers[-1]._run._writer._connection.execute(full)

    logs = fit(make(), watch, Fill(), epochs=4).history
    assert capsys.readouterr().out.count("records stopped at step 6") == 1
    assert "disk is full" in watch.messages[0]
    assert len(watch.messages) == 1
    assert len(logs["gradient_norm"]) == 4
    assert len(read_run(watch.run_directory)) == 1


def test_a_model_that_has_diverged_is_recorded(tmp_path):
    model = make()
    model.set_weights([w * np.nan for w in model.get_weights()])
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    logs = fit(model, watch).history
    assert np.isnan(logs["gradient_norm"]).all()
    run = read_run(watch.run_directory)
    assert run.scalars["step"].tolist() == [3]
    assert np.isnan(run.scalars["loss"]).all()
    assert np.isnan(run.sketches).any()


def test_a_run_with_another_first_batch_is_told_before_it_trains(tmp_path):
    for first, told in ((0, False), (0, False), (8, True)):
        watch = GradientVariance(every="epoch", log_dir=tmp_path)
        make().fit(
            X[first:],
            Y[first:],
            batch_size=8,
            verbose=0,
            shuffle=False,
            callbacks=[watch],
        )
        assert any("cannot be compared" in m for m in watch.messages) == told
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    fit(make(), watch)
    assert watch.messages == []


def test_nothing_stays_when_a_step_raises(tmp_path):
    def fail(data):
        raise RuntimeError("on purpose")

    model = make(cls=kpg.PerGradModel, gradient_mode="vectorized")
    model.train_step = fail
    for _ in range(2):
        watch = GradientVariance(
            every="epoch", log_dir=tmp_path, run_name="mine"
        )
        with pytest.raises(RuntimeError, match="on purpose"):
            fit(model, watch)
        assert not model.gradient_mode.is_watched
        assert "step" not in model.train_function.__qualname__.split(".")
    assert len(read_run(tmp_path / "mine")) == 0


def test_nothing_stays_when_another_callback_raises(tmp_path):
    class Failing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError("on purpose")

    model = make(cls=kpg.PerGradModel, gradient_mode="vectorized")
    fit(model)
    function = model.train_function
    for name in ("one", "other"):
        watch = GradientVariance(
            PROBE, every="epoch", log_dir=tmp_path, run_name=name
        )
        with pytest.raises(RuntimeError, match="on purpose"):
            fit(model, watch, Failing())
        gc.collect()
        assert not model.gradient_mode.is_watched
        assert model.train_function is function
        assert not watch._handlers
    assert "gradient_norm" not in fit(model).history


def test_after_training_the_train_function_is_the_models_own():
    model = make()
    fit(model, GradientVariance())
    function = model.train_function
    fit(model, GradientVariance())
    assert model.train_function is function


def test_two_of_them_watch_at_once():
    one, other = GradientVariance(PROBE), GradientVariance(every=1)
    model = make(cls=kpg.PerGradModel, gradient_mode="vectorized")
    fit(model, one, other)
    assert one.measurements[-1].samples == 6
    assert len(other.measurements) == 3
    assert not model.gradient_mode.is_watched
    assert set(fit(model).history) == {"accuracy", "loss"}
    placement = kpg.callbacks.DevicePlacement()
    found = fit(model, placement, one).history
    assert placement.report is not None
    assert {"ops_on_cpu", "gradient_norm"} <= set(found)
    assert "gradient_norm" not in fit(model).history


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "`every` must be a positive integer.*'epoch'"),
        ({"every": "step"}, "every='step'"),
        ({"repeats": 0}, "`repeats` must be a positive integer"),
        ({"repeats": True}, "repeats=True"),
        ({"sketch_size": 8}, "`sketch_size` must be at least 16"),
        ({"run_name": "a"}, "belong to a run in `log_dir`"),
        ({"log_dir": "x", "tags": ["a"]}, "`tags` expected a dict"),
        ({"log_dir": "x", "tags": {"a": [1]}}, "`tags` expected a dict"),
        ({"probe": X}, "`probe` expected a batch"),
        ({"probe": (X,) * 4}, "Received: a tuple of 4"),
        ({"probe": (X, Y[:3])}, r"y of shape \(3,\)"),
        ({"probe": (X[:0], Y[:0])}, "the same number of samples"),
        ({"probe": (np.float32(3), None)}, "on their first axis"),
        ({"probe": (X, [object()] * 19)}, "is no tensor|expected arrays"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        GradientVariance(**arguments)


@pytest.mark.parametrize("probe", [(X[:, :3], Y), (Y, X), ((X, X), Y)])
def test_a_probe_that_the_model_cannot_take(probe):
    model = make()
    before = model.get_weights()
    with pytest.raises(
        ValueError, match=r"`probe` expected a batch like.*x of"
    ):
        fit(model, GradientVariance(probe))
    assert_same(before, model.get_weights())


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y[:, None]) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


@pytest.mark.parametrize("probe", [PROBE, None])
def test_a_missing_loss_is_named(probe):
    inputs = keras.Input((6, 6, 1))
    model = OwnStep(inputs, layers.Dense(1)(layers.Flatten()(inputs)))
    model.compile("sgd", jit_compile=False)
    before = model.get_weights()
    with pytest.raises(ValueError, match="compiled without a loss") as caught:
        model.fit(X, Y, verbose=0, callbacks=[GradientVariance(probe)])
    assert "probe" not in str(caught.value)
    assert_same(before, model.get_weights())


def test_a_layer_that_mixes_samples_does_not_stop_training():
    model = make(with_mixing)
    watch = GradientVariance(PROBE)
    logs = fit(model, watch, epochs=2).history
    assert len(watch.messages) == 1
    assert "gradients are not defined: layer" in watch.messages[0]
    assert len(logs["gradient_norm"]) == 2
    assert "gradient_variance" not in logs


def test_under_a_distribution_strategy(tmp_path):
    def trained(*callbacks):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = make(with_batch_norm)
        fit(model, *callbacks, epochs=2)
        return state(model)

    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    assert_same(trained(), trained(watch))
    assert len(read_run(watch.run_directory)) == 2
    assert watch.measurements[-1].norm > 0
    with pytest.raises(ValueError, match="the first one cannot be looked at"):
        trained(GradientVariance())


# One process imports everything and then forks, which saves 20 starts: no
# op has run in it before.
KILLED = """
import os, random, signal, sys, time
from tests.gradient_health.test_gradient_variance import *

def train(folder, name, ready):
    class Say(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            os.write(ready, b"!")  # a record was written
    watch = GradientVariance(
        PROBE, every=1, repeats=2, log_dir=folder, run_name=name
    )
    fit(make(), watch, Say(), epochs=100000)

moments = random.Random(5)
for kill in range(20):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        train(sys.argv[1], f"run{kill}", write)
    os.close(write)
    said = sum(len(os.read(read, 1)) for _ in range(9))
    time.sleep(moments.uniform(0, 0.2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while found := os.read(read, 1000):
        said += len(found)
    os.close(read)
    print(f"run{kill} {said}")
"""


@pytest.mark.slow
def test_a_killed_training_loses_at_most_one_record(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 20
    for name, said in lines:
        run = read_run(tmp_path / name)
        steps = run.scalars["step"].tolist()
        assert steps == list(range(1, len(steps) + 1))
        # Of the last one nobody was told, or it was not finished.
        assert len(steps) - int(said) in (0, 1)
        assert len(run.sketches) == len(steps)


@pytest.mark.parametrize("name", ["gradient_norm", "gradient_alpha"])
def test_a_metric_with_the_name_of_a_figure_is_refused(name):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    metric = keras.metrics.MeanAbsoluteError(name=name)
    model.compile("sgd", "mse", metrics=[metric])
    x, y = np.ones((8, 4), "f4"), np.ones((8, 1), "f4")
    watch = GradientVariance((x, y), instruments="alpha")
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"a metric named '{name}'"):
        model.fit(x, y, verbose=0, callbacks=[watch])
    assert_same(before, model.get_weights())
