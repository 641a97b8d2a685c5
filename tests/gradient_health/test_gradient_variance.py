"""The callback in `fit`: what it logs, records, refuses and leaves alone."""

import os
import re
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.callbacks import GradientVariance
from keras_pergrad.runs import list_runs, read_run
from keras_pergrad.runs.description import architecture, fingerprint
from tests import zoo
from tests.marks import few
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    trained,
    unchanged,
    weights,
)
from tests.runs import made_up

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
TRAINING, ALPHA = {"source": "training"}, {"instruments": "alpha"}
SUCH = "`trackers` expected trackers such"
MINE = {"log_dir": "runs", "run_name": "mine"}


def make(maker="sequential", cls=keras.Model, **compiling):
    keras.utils.set_random_seed(3)
    model = zoo.MAKERS[maker](cls) if isinstance(maker, str) else maker()
    compiling = {
        "optimizer": "adam",
        "metrics": ["accuracy"],
        "jit_compile": False,
        **compiling,
    }
    return compiled(model, loss="sparse_categorical_crossentropy", **compiling)


def pergrad(mode, maker="sequential", **compiling):
    return make(maker, kpg.PerGradModel, gradient_mode=mode, **compiling)


def fit(model, *callbacks, **options):
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    return model.fit(X, Y, callbacks=list(callbacks), **options)


def classifier(*parts):
    end = layers.Dense(3, activation="softmax")
    return net(layers.Flatten(), *parts, end, shape=(6, 6, 1), units=None)


def with_batch_norm():
    norm, dropout = layers.BatchNormalization(), layers.Dropout(0.5)
    return classifier(layers.Dense(5), norm, dropout)


def with_noise():
    def noisy(x):
        return x + keras.random.normal(keras.ops.shape(x))  # the global seed

    return classifier(layers.Dense(5), layers.Lambda(noisy))


def with_mixing():
    return classifier(zoo.Centre())


CASES = {
    "dropout, add_loss": lambda: make("functional"),
    "built late": lambda: make("subclassed"),
    "batch norm": lambda: make(with_batch_norm),
    "noise": lambda: make(with_noise),
    "eager": lambda: make(run_eagerly=True),
    "xla": lambda: make(jit_compile=True),
    "several steps": lambda: make(steps_per_execution=2),
    "vectorized": lambda: pergrad("vectorized", "functional"),
    "clipped, noisy": lambda: pergrad(
        kpg.Vectorized(kpg.ClippedMean(0.1, noise_multiplier=1.0, seed=5))
    ),
    "per sample": lambda: pergrad("per_sample"),
    "accumulated": lambda: pergrad(kpg.Accumulated(2, 4)),
}


def norms_of(watch):
    return [reading.figures["gradient_norm"] for reading in watch.readings]


@pytest.mark.parametrize(
    "case", few(CASES, ["eager", "clipped, noisy", "accumulated"])
)
def test_training_is_the_same_to_the_bit(case):
    """With the callback, and with all of its instruments."""
    model = CASES[case]()
    alone, expected = fit(model, epochs=2).history, weights(model)
    within = {"gradient_variance", "gradient_noise_scale", "gradient_snr"}
    keys = PROBE_KEYS - within if case == "batch norm" else PROBE_KEYS
    for options in ({}, {"instruments": "all", "histograms": True}):
        model = CASES[case]()
        watch = GradientVariance(every=1, **options)
        logs = fit(model, watch, epochs=2).history
        assert_equal(weights(model), expected)
        assert {k: logs[k] for k in alone} == alone
        more = set(logs) - set(alone)
        if isinstance(model, kpg.PerGradModel):
            more = {k for k in more if "train" not in k}
        assert len(watch.readings) >= 2
        if not options:
            assert more == keys
    # It needs losses of samples, which the others add to or mix.
    if case not in ("batch norm", "dropout, add_loss", "vectorized"):
        assert all("gradient_alpha" in r.figures for r in watch.readings)


def test_the_probe_measures_what_the_functions_tell():
    model = make()
    watch = GradientVariance(probe=(X, Y, WEIGHTS))
    logs = fit(model, watch, epochs=2).history
    known = kpg.gradient_statistics(model, X, Y, WEIGHTS)
    assert logs["gradient_norm"][-1] == pytest.approx(known.norm, rel=1e-5)
    trace = pytest.approx(known.variance, rel=1e-4)
    assert logs["gradient_variance"][-1] == trace
    last = watch.readings[-1].by_variable
    each = kpg.gradient_statistics(model, X, Y, WEIGHTS, per_variable=True)
    for k, one in enumerate(each):
        assert last["norm"][k] == pytest.approx(one.norm, rel=1e-4)
        assert last["variance"][k] == pytest.approx(one.variance, rel=1e-3)
        if one.squared_true_norm > 0:
            scale = pytest.approx(one.noise_scale, rel=0.01)
            assert last["noise_scale"][k] == scale
    shapes = {values.shape for values in last.values()}
    assert shapes == {(len(model.trainable_variables),)}
    assert {values.dtype.name for values in last.values()} == {"float32"}


def test_the_default_probe_is_the_first_batch():
    found = []
    for probe in (None, (X[:8], Y[:8])):
        watch = GradientVariance(probe=probe)
        fit(make(), watch, epochs=2)
        found.append(norms_of(watch))
    assert found[0] == found[1]
    assert watch.readings[0].samples == 8


@pytest.mark.parametrize(
    ("options", "compiling", "epochs", "expected"),
    [
        ({"every": 2}, {}, 3, [2, 4, 6, 8]),
        ({"every": 100}, {"steps_per_execution": 8}, 1, []),
        # Each epoch's end, and what ten measurements need between them.
        ({}, {}, 1, [1, 2, 3]),
        ({}, {}, 5, [2, 3, 5, 6, 8, 9, 11, 12, 14, 15]),
        ({}, {}, 10, [*range(3, 31, 3)]),
    ],
)
def test_it_measures_at_steps_that_give_a_curve(
    options, compiling, epochs, *, expected
):
    """The logs of an epoch, of three updates here, have its last figures."""
    watch = GradientVariance(probe=PROBE, repeats=1, **options)
    logs = fit(make(**compiling), watch, epochs=epochs).history
    assert watch.steps == expected
    last = {(s - 1) // 3: norm for s, norm in zip(expected, norms_of(watch))}
    assert logs.get("gradient_norm", []) == list(last.values())
    assert bool(PROBE_KEYS & set(logs)) == bool(expected)


@pytest.mark.parametrize("mode", [kpg.Vectorized, kpg.PerSample])
@pytest.mark.parametrize("own", [False, True])
def test_statistics_of_the_training_batches(mode, own):
    model = pergrad(mode(statistics=True))
    expected = fit(model, epochs=2).history
    model = pergrad(mode(statistics=own))
    watch = GradientVariance(probe=PROBE)
    found = fit(model, watch, epochs=2).history
    for name in ("norm", "variance", "noise_scale"):
        given, right = found[f"train_gradient_{name}"], f"gradient_{name}"
        np.testing.assert_allclose(given, expected[right], rtol=1e-3)
    assert found["gradient_norm"][-1] == norms_of(watch)[-1]
    # Afterwards the model is as it was compiled.
    assert not model.step_options.is_watched
    assert ("gradient_norm" in fit(model).history) == own


# Records.


def test_a_run_is_recorded(tmp_path):
    model = pergrad("vectorized")
    watch = GradientVariance(
        PROBE, log_dir=tmp_path, tags={"learning": "fast", "fold": 3}
    )
    written = []

    class Reads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            written.append(len(read_run(watch.run_directory)))

    logs = fit(model, watch, Reads(), epochs=3).history
    # No record waits for another: what kills the process loses none of them.
    assert written == [*range(1, 10)]
    assert list_runs(tmp_path) == [watch.run_directory]
    run = read_run(watch.run_directory)
    # A curve of at least ten points, as far as there are steps.
    assert run.scalars["step"].tolist() == [*range(1, 10)] == watch.steps
    assert run.scalars["epoch"].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    for key in PROBE_KEYS:
        np.testing.assert_array_equal(run.scalars[key][2::3], logs[key])
    assert (run.scalars["loss"] > 0).all()
    norms = np.linalg.norm(run.read("norms"), axis=1)
    np.testing.assert_allclose(norms, run.scalars["gradient_norm"], rtol=1e-5)
    sums = run.read("variances").sum(1)
    expected = run.scalars["gradient_variance"]
    np.testing.assert_allclose(sums, expected, rtol=1e-5)
    sketched = np.linalg.norm(run.read("sketches"), axis=1)
    np.testing.assert_allclose(sketched, norms, rtol=0.15)
    info = run.info
    assert info["architecture"] == architecture(model)
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
    """And names of their own, which sort by time and tell the seed."""
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    directories = []
    tf.config.experimental.enable_op_determinism()
    try:
        for cls in (keras.Model, kpg.PerGradModel, keras.Model):
            fit(make(cls=cls), watch)
            directories.append(watch.run_directory)
            assert re.search(r"/\d{8}-\d{6}-seed3-\w+$", directories[-1])
    finally:
        from tensorflow.python.framework import config

        config.disable_op_determinism()
    assert len(set(directories)) == 3
    assert sorted(directories) == list_runs(tmp_path)
    runs = [read_run(path) for path in directories]
    assert all(run.info["op_determinism"] is True for run in runs)
    for run in runs[1:]:
        for key in ("architecture", "probe", "machine", "seed"):
            assert run.info[key] == runs[0].info[key]
        sketches = run.read("sketches"), runs[0].read("sketches")
        np.testing.assert_array_equal(*sketches)
        assert run.scalars["gradient_repeat_deviation"].tolist() == [0]
        assert run.scalars["bitwise_equal_variables"].tolist() == [6]


def test_another_probe_has_another_fingerprint():
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
    assert train().steps == [9, 12]
    run = read_run(tmp_path / "runs" / "mine")
    assert run.scalars["epoch"].tolist() == [0, 1, 2, 3]
    assert run.scalars["step"].tolist() == [3, 6, 9, 12]


def test_those_who_read_the_logs_have_all(tmp_path, capsys):
    """Before the callback and after it, and the progress bar."""
    paths = tmp_path / "before.csv", tmp_path / "after.csv"
    before, after = map(keras.callbacks.CSVLogger, paths)
    watch = GradientVariance(PROBE)
    stop = keras.callbacks.EarlyStopping("gradient_noise_scale", mode="min")
    mode = kpg.Vectorized(kpg.ClippedMean(1e9), statistics=True)
    model = pergrad(mode)
    callbacks = [before, stop, watch, after]
    history = model.fit(X, Y, verbose=2, callbacks=callbacks, epochs=2).history
    for path in paths:
        table = np.genfromtxt(path, delimiter=",", names=True)
        for name in PROBE_KEYS:
            assert table[name] == pytest.approx(history[name])
    shown = re.findall(r"(\w+): ", capsys.readouterr().out)
    assert sorted(shown) == sorted(2 * [*history])
    assert history["nonfinite_samples"] == [0.0, 0.0]
    assert "train_gradient_variance" in history


def test_training_goes_on_when_the_disk_is_full(tmp_path, capsys):
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:  # no file may be larger now
                size = os.path.getsize(f"{watch.run_directory}/arrays.f32")
                most = size + 8, limits[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, most)

    try:
        logs = fit(make(), watch, Fill(), epochs=4).history
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().out.count("records stopped at step 6") == 1
    assert "File too large" in watch.messages[0]
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
    assert np.isnan(run.read("sketches")).any()


def test_a_run_with_another_first_batch_is_told_before_it_trains(tmp_path):
    for first, told in ((0, False), (0, False), (8, True)):
        watch = GradientVariance(every="epoch", log_dir=tmp_path)
        trained(make(), X[first:], Y[first:], batch_size=8, callbacks=[watch])
        assert any("cannot be compared" in m for m in watch.messages) == told
    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    fit(make(), watch)
    assert watch.messages == []


def test_nothing_stays_when_a_step_raises(tmp_path):
    def fail(data):
        raise RuntimeError("on purpose")

    model = pergrad("vectorized")
    model.train_step = fail
    for _ in range(2):
        watch = GradientVariance(
            every="epoch", log_dir=tmp_path, run_name="mine"
        )
        with pytest.raises(RuntimeError, match="on purpose"):
            fit(model, watch)
        assert not model.step_options.is_watched
        assert "step" not in model.train_function.__qualname__.split(".")
    assert len(read_run(tmp_path / "mine")) == 0


def test_two_of_them_watch_at_once():
    one, other = GradientVariance(PROBE), GradientVariance(every=1)
    model = pergrad("vectorized")
    fit(model, one, other)
    assert one.readings[-1].samples == 6
    assert len(other.readings) == 3
    assert not model.step_options.is_watched
    assert set(fit(model).history) == {"accuracy", "loss"}
    placement = kpg.callbacks.DevicePlacement()
    found = fit(model, placement, one).history
    assert placement.report is not None
    assert {"ops_on_cpu", "gradient_norm"} <= set(found)
    function = model.train_function
    assert "gradient_norm" not in fit(model).history
    fit(model, one)
    assert model.train_function is function


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "`every` expected a positive integer.*'epoch'"),
        ({"every": "step"}, "every='step'"),
        ({"repeats": 0}, "`repeats` expected a positive integer"),
        ({"repeats": True}, "repeats=True"),
        ({"sketch_size": 8}, "`sketch_size` must be at least 16"),
        ({"run_name": "a"}, "belong to a run in `log_dir`"),
        ({"tags": {"a": 1}}, "or to `trackers`"),
        ({"log_dir": "x", "tags": ["a"]}, "`tags` expected a dict"),
        ({"log_dir": "x", "tags": {"a": [1]}}, "`tags` expected a dict"),
        ({"probe": X}, "`probe` expected a batch"),
        ({"probe": (X,) * 4}, "Received: a tuple of 4"),
        ({"probe": (X, Y[:3])}, r"y of shape \(3,\)"),
        ({"probe": (X[:0], Y[:0])}, "the same number of samples"),
        ({"probe": (np.float32(3), None)}, "on their first axis"),
        ({"probe": (X, [object()] * 19)}, "is no tensor|expected arrays"),
        ({"instruments": "alphas"}, "`instruments` expected.*'norm_test', "),
        ({"instruments": ("alpha", "beta")}, "'layers'. Received: instrum"),
        ({"instruments": 3}, "instruments=3"),
        ({"source": "train"}, "`source` expected one of 'probe', 'training'"),
        (TRAINING | {"probe": (X, Y)}, "a probe, which would not be measured"),
        (TRAINING | {"repeats": 3}, "repeats=3, but a step runs once"),
        (TRAINING | {"log_dir": "runs"}, "log_dir='runs'.*kpg.trackers"),
        (TRAINING | ALPHA, "'alpha', which needs.*source='probe'"),
        ({"trackers": "logs"}, SUCH),
        ({"trackers": [1]}, SUCH),
        ({"trackers": kpg.trackers.TensorBoard}, SUCH),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        GradientVariance(**arguments)


class OwnStep(keras.Model):
    """Needs no compiled loss."""

    def train_step(self, data):
        for v in self.trainable_variables:
            v.assign_add(keras.ops.ones_like(v))
        return {}


def own_step():
    model = net(layers.Flatten(), shape=(6, 6, 1), units=1, cls=OwnStep)
    return compiled(model, loss=None, jit_compile=False)


def named(metric):
    return make(metrics=[keras.metrics.SparseCategoricalAccuracy(metric)])


LIKE = r"`probe` expected a batch like.*x of"
TAKEN = "a run 'mine' with 1 rec"
NO_LOSS = "^(?!.*probe).*compiled without a loss"
REFUSED = {
    "images of three rows": (make, {"probe": (X[:, :3], Y)}, LIKE),
    "labels first": (make, {"probe": (Y, X)}, LIKE),
    "two inputs": (make, {"probe": ((X, X), Y)}, LIKE),
    "no loss": (own_step, {"probe": PROBE}, NO_LOSS),
    "no loss of the first batch": (own_step, {}, NO_LOSS),
    "a metric named as a figure": (
        lambda: named("gradient_norm"),
        {"probe": PROBE},
        "a metric named 'gradient_norm'",
    ),
    "a metric named as that of an instrument": (
        lambda: named("gradient_alpha"),
        ALPHA | {"probe": PROBE},
        "a metric named 'gradient_alpha'",
    ),
    "the name of a run": (make, MINE | {"probe": PROBE}, TAKEN),
    "the name of a run, of the first batch": (make, MINE, TAKEN),
    "a file in place of a directory": (
        make,
        {"log_dir": "file"},
        "`log_dir` expected a directory",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_before_a_weight_changes(case, tmp_path, monkeypatch):
    maker, options, message = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    made_up.write(tmp_path / "runs", "mine", np.ones((1, made_up.SIZE)))
    model, errors = maker(), (ValueError, OSError)
    with unchanged(model), pytest.raises(errors, match=f"(?s){message}"):
        fit(model, GradientVariance(**options))
    assert len(read_run(tmp_path / "runs" / "mine")) == 1


NO_VARIANCE = {
    with_batch_norm: [
        "no variance within the batch",
        "own gradients are not defined: layer 'batch_norm",
        "BatchNormalization) makes every sample",
        "GroupNormalization",
    ],
    with_mixing: ["own gradients are not defined: layer 'centre", "mixes the"],
}


@pytest.mark.parametrize("maker", NO_VARIANCE)
def test_samples_without_gradients_are_explained_once(maker, capsys):
    watch = GradientVariance(PROBE)
    logs = fit(make(maker), watch, epochs=2).history
    printed = capsys.readouterr().out
    (message,) = watch.messages
    for words in NO_VARIANCE[maker]:
        assert words in message
        assert printed.count(words) == 1
    assert message.endswith(".")
    assert "Arguments received" not in printed
    assert "gradient_mode=" not in printed  # it trains by "batch" already
    assert len(logs["gradient_norm"]) == 2
    assert "gradient_variance" not in logs
    last = watch.readings[-1]
    assert last.figures["gradient_norm"] > 0
    assert last.figures["gradient_repeat_deviation"] == 0
    assert set(last.by_variable) == {"norm", "repeat_deviation"}


def test_under_a_distribution_strategy(tmp_path):
    def weights_after(*callbacks):
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = make(with_batch_norm)
        fit(model, *callbacks, epochs=2)
        return weights(model)

    watch = GradientVariance(PROBE, every="epoch", log_dir=tmp_path)
    assert_equal(weights_after(watch), weights_after())
    assert len(read_run(watch.run_directory)) == 2
    assert norms_of(watch)[-1] > 0
    with pytest.raises(ValueError, match="the first one cannot be looked at"):
        weights_after(GradientVariance())
