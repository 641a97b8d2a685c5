"""profile_pipeline measures, and leaves the model as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

import keras_pergrad as kpg
from keras_pergrad.callbacks import DataStall
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.measuring import (
    Measurement,
    measure,
    temporary_step,
    try_workers,
)
from keras_pergrad.stalls.profile import profile_pipeline
from keras_pergrad.stalls.wait_log import CAPACITY
from tests.stalls import recorded_stalls
from tests.stalls.slow_data import py_dataset, serial_map
from tests.stalls.stall_truth import BATCH, Clock, TimedStepModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def built(optimizer="adam"):
    model = TimedStepModel(Clock(), 0.003)
    model.compile(optimizer, "mse", jit_compile=False)
    model(BATCH[0])
    return model


def test_a_dataset_and_its_changes_are_measured():
    model = built()
    model.fit(*BATCH, verbose=0)
    state = [*model.variables, *model.optimizer.variables]
    before = [np.array(variable) for variable in state]
    function = model.train_function
    profile = profile_pipeline(serial_map(), model, batches=10)
    for variable, value in zip(state, before):
        np.testing.assert_array_equal(np.array(variable), value)
    assert model.train_function is function
    # A step that sleeps may take longer on a busy machine, but no less.
    assert profile.model_batches_per_s < 1 / 0.003
    assert profile.slowest_stage[0] in [row.name for row in profile.stages]
    assert set(profile.what_if) == {"prefetch", "cache"}
    assert "cache" in str(profile)


@pytest.mark.timing
def test_a_cache_is_seen_to_help():
    profile = profile_pipeline(serial_map(), built(), batches=10)
    assert profile.pipeline_batches_per_s < 1 / 0.016
    assert profile.what_if["cache"][1] < 0.5 * profile.wait_ms
    assert profile.slowest_stage[0] == "map(call) + batch"


def test_a_pydataset_is_tried_with_workers():
    data = py_dataset()
    profile = profile_pipeline(data, batches=15)
    assert profile.model_batches_per_s is None
    rate, wait = profile.what_if["4 workers"]
    assert rate > 0
    assert wait >= 0
    assert data.workers == 1


def test_arrays_are_measured():
    x = np.zeros((640, 3), "float32")
    profile = profile_pipeline((x, x[:, :1]), batches=np.int64(10))
    assert profile.pipeline_batches_per_s > 0
    assert profile.what_if == {}


def test_bad_input_is_refused():
    with pytest.raises(
        ValueError, match=r"positive integer\. Received: batches=0"
    ):
        profile_pipeline(tf.data.Dataset.range(3), batches=0)
    with pytest.raises(
        ValueError, match=r"positive integer\. Received: batches=2.5"
    ):
        profile_pipeline(tf.data.Dataset.range(3), batches=2.5)
    with pytest.raises(ValueError, match="read only once"):
        profile_pipeline(BATCH for _ in range(3))
    one = tf.data.Dataset.from_tensors(BATCH)
    with pytest.raises(ValueError, match="at least one more"):
        profile_pipeline(one)
    unbuilt = TimedStepModel(Clock(), 0)
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ValueError, match="expected a built model"):
        profile_pipeline(one.repeat(4), unbuilt)
    with pytest.raises(TypeError, match=r"profile_pipeline\(data, model\)"):
        profile_pipeline(unbuilt, one)
    with pytest.raises(TypeError, match=r"an object of type ndarray$"):
        profile_pipeline(*BATCH)


def executing(steps):
    model = TimedStepModel(Clock(), 0)
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=steps)
    model(BATCH[0])
    return model


def repeated(batches):
    return tf.data.Dataset.from_tensors(BATCH).repeat(batches)


@pytest.mark.parametrize(
    ("executed", "batches", "taken"),
    [(8, 100, 104), (700, 599, 600), (2500, 2499, 2500)],
)
def test_executions_of_many_steps_are_counted_in_batches(
    executed, batches, taken
):
    model = executing(executed)
    with temporary_step(model, batches) as step:
        report = measure(repeated(-1), batches, step).report
    assert report.steps == taken
    # Once more before, since the first call traced.
    assert len(model.stall_clock.step_ends) == 2 * taken
    assert model.steps_per_execution == executed


def test_data_shorter_than_an_execution_is_measured():
    profile = profile_pipeline(repeated(5), executing(50), batches=100)
    assert profile.together_batches_per_s > 0
    assert profile.model_batches_per_s > 0


class FetchesOnItsOwn(TimedStepModel):
    """Takes 600 batches in what it calls one step."""

    def make_train_function(self, force=False):
        @tf.function
        def fetch_all(iterator):
            for _ in tf.range(600):
                iterator.get_next()

        def train_function(iterator):
            fetch_all(iterator)
            return {"loss": 0.0}

        self.train_function = train_function


def test_no_figures_where_fetches_were_not_recorded():
    model = FetchesOnItsOwn(Clock(), 0)
    model.compile("sgd", "mse")
    model(BATCH[0])
    stall = DataStall(warn_above=0)
    model.fit(repeated(CAPACITY + 88), verbose=0, callbacks=[stall])
    report = stall.reports[0]
    # All that the log had no room for, and the one that found the end.
    assert report.not_recorded == 88 + 1
    assert (report.steps, report.data_stall_s, report.step_ms) == (None,) * 3
    assert "no figures, since 89 fetches" in stall.message
    with pytest.raises(RuntimeError, match=r"not recorded.*steps_per_exec"):
        profile_pipeline(repeated(-1), model, batches=3)


MODES = {
    "sums": lambda: kpg.Accumulated(steps=4),
    "noise": lambda: kpg.Vectorized(
        kpg.ClippedMean(1.0, noise_multiplier=1.0, seed=1)
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_a_gradient_mode_holds_is_left_alone(mode):
    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    y = x[:, :1]
    data = tf.data.Dataset.from_tensor_slices((100 * x, y)).batch(4)
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    start, found = net.get_weights(), []
    for profiled in (False, True):
        model = kpg.PerGradModel.from_model(net)
        sgd = keras.optimizers.SGD(0.1)
        model.compile(
            sgd, "mse", jit_compile=False, gradient_mode=MODES[mode]()
        )
        model.set_weights(start)
        if mode == "sums":  # one batch waits for three more
            model.train_on_batch(x[:4], y[:4])
        if profiled:
            state = model.gradient_state
            profile_pipeline(data, model, batches=2)
            assert model.gradient_state is state
        model.fit(x[4:], y[4:], batch_size=4, verbose=0, shuffle=False)
        found.append(model.get_weights())
    for plain, after in zip(*found):
        np.testing.assert_array_equal(plain, after)


def test_keras_draws_go_on_as_if_nothing_had_been_profiled():
    class Noisy(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal((4, 1))

    keras.random.normal([])  # makes Keras's own seed generator
    state = global_seed_generator().state
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.add(Noisy())
    model.compile("sgd", "mse", jit_compile=False)
    before = np.array(state)
    profile_pipeline(repeated(-1), model, batches=1)
    np.testing.assert_array_equal(np.array(state), before)
    model.fit(repeated(1), verbose=0)
    assert (np.array(state) != before).any()


def test_targets_that_the_loss_needs_are_asked_for():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="is not compiled"):
        profile_pipeline((np.ones((96, 4)),), model, batches=2)
    model.compile("sgd", "mse", jit_compile=False)
    before = model.get_weights()
    x = np.ones((96, 4), "float32")
    data = tf.data.Dataset.from_tensor_slices(x).batch(2)
    for without in (data, (x,)):
        with pytest.raises(
            ValueError, match=r"Received: y=None.*\(x, y\), mod"
        ):
            profile_pipeline(without, model, batches=2)
    for old, new in zip(before, model.get_weights()):
        np.testing.assert_array_equal(old, new)
    assert profile_pipeline(data, batches=2).model_batches_per_s is None


def test_a_model_without_targets_is_profiled():
    class Reconstruction(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            return {"loss": tf.reduce_mean(self(data))}

    model = Reconstruction()
    model.compile("sgd", "mse", jit_compile=False)
    x = np.ones((16, 4), "float32")
    model(x)
    data = tf.data.Dataset.from_tensor_slices(x).batch(2)
    assert profile_pipeline(data, model, batches=2).model_batches_per_s


def test_threads_and_processes_of_a_pydataset_are_tried(monkeypatch):
    def figures(data, with_model):
        return {"wait_ms": 6.0 if data.workers > 1 else 16.0, "step_ms": 0.0}

    recorded_stalls.say_in_profile(monkeypatch, figures)
    data = py_dataset()
    profile = profile_pipeline(data, batches=12, workers=(0, 3))
    tried = [(trial.workers, trial.by) for trial in profile.workers]
    assert tried == [(0, "threads"), (3, "threads"), (3, "processes")]
    assert profile.knee.workers == 3
    assert (data.workers, data.use_multiprocessing) == (1, False)
    lines = str(profile).split("\n")
    assert any("<- enough" in line and "3 " in line for line in lines)


def test_the_knee_is_the_fewest_workers_near_the_best():
    found = [
        kpg.diagnose.WorkerTrial(0, "threads", 10.0),
        kpg.diagnose.WorkerTrial(2, "threads", 91.0),
        kpg.diagnose.WorkerTrial(2, "processes", 95.0),
        kpg.diagnose.WorkerTrial(4, "threads", 100.0),
        kpg.diagnose.WorkerTrial(8, "processes", None, error="OSError"),
    ]
    profile = profile_of(found)
    assert profile.knee is found[2]
    assert "8 processes (OSError)     failed" in str(profile)
    assert profile_of(found[-1:]).knee is None
    assert profile_of([]).knee is None


def profile_of(workers):
    return kpg.diagnose.PipelineProfile(
        10.0, None, 10.0, 0.0, 0.0, None, {}, workers=workers
    )


class DataLoader:
    """As torch's, as far as the sweep looks."""

    def __init__(self, dataset, num_workers=0, **settings):
        self.dataset, self.num_workers = dataset, num_workers
        self.settings = settings
        self.__dict__.update(settings)


def test_a_torch_loader_has_processes_only_and_an_error_has_its_row():
    settings = {
        "batch_size": 4,
        "sampler": "mine",
        "collate_fn": len,
        "drop_last": True,
    }
    seen = []

    def measured(loader):
        assert loader.settings == settings
        seen.append(loader.num_workers)
        if loader.num_workers == 4:
            raise OSError("no more processes")
        report = StallReport(steps=3, data_stall_s=0.02, step_ms=0.0)
        return Measurement(report, None, memory=2**20)

    loader = DataLoader([1], **settings)
    found = try_workers(loader, "dataloader", (0, 2, 4), measured)
    assert seen == [0, 2, 4]
    assert [trial.batches_per_s for trial in found] == [100.0, 100.0, None]
    assert (found[0].memory_mib, found[2].error) == (1.0, "OSError")


@pytest.mark.parametrize("bad", [-1, 1.5, True, "two", (1, -1)])
def test_bad_numbers_of_workers_are_refused(bad):
    with pytest.raises(ValueError, match=r"integers of at least 0.*Received"):
        profile_pipeline(py_dataset(), workers=bad)


def test_data_whose_workers_cannot_be_changed_is_refused():
    with pytest.raises(ValueError, match=r"can be changed\. Received"):
        profile_pipeline(tf.data.Dataset.range(4), workers=2)
