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
from tests.models.making import (
    assert_equal,
    compiled,
    net,
    normal,
    trained,
    weights,
)
from tests.stalls import recorded_stalls
from tests.stalls.slow_data import py_dataset, serial_map
from tests.stalls.stall_truth import (
    BATCH,
    QUIET,
    Clock,
    TimedStepModel,
    batches,
    small,
    timed,
)

pytestmark = QUIET


def test_a_dataset_and_its_changes_are_measured():
    model = timed(0.003, optimizer="adam")
    trained(model, *BATCH)
    before, function = weights(model), model.train_function
    profile = profile_pipeline(serial_map(), model, batches=10)
    assert_equal(model, before)
    assert model.train_function is function
    # A step that sleeps may take longer on a busy machine, but no less.
    assert profile.model_batches_per_s < 1 / 0.003
    assert profile.slowest_stage[0] in [row.name for row in profile.stages]
    assert set(profile.what_if) == {"prefetch", "cache"}
    assert "cache" in str(profile)


@pytest.mark.timing
def test_a_cache_is_seen_to_help():
    model = timed(0.003, built=True)
    profile = profile_pipeline(serial_map(), model, batches=10)
    assert profile.pipeline_batches_per_s < 1 / 0.016
    assert profile.what_if["cache"][1] < 0.5 * profile.wait_ms
    assert profile.slowest_stage[0] == "map(call) + batch"


@pytest.mark.parametrize(
    ("make", "tried"),
    [
        (py_dataset, {"4 workers"}),
        (lambda: (np.zeros((640, 3)), np.zeros((640, 1))), set()),
    ],
)
def test_data_of_other_kinds_is_measured(make, tried):
    data = make()
    profile = profile_pipeline(data, batches=np.int64(10))
    assert profile.pipeline_batches_per_s > 0
    assert profile.model_batches_per_s is None
    assert set(profile.what_if) == tried
    assert all(rate > 0 <= wait for rate, wait in profile.what_if.values())
    assert getattr(data, "workers", 1) == 1


def test_bad_input_is_refused():
    several, one = batches(4), batches(1)
    plain, model = net(shape=(3,)), small()
    before = weights(model)
    without_targets = r"Received: y=None.*\(x, y\), mod"
    for arguments, settings, message in (
        *(
            ([several], {"batches": bad}, f"positive integer.*batches={bad}")
            for bad in (0, 2.5)
        ),
        *(
            ([py_dataset()], {"workers": bad}, "integers of at least 0.*Rec")
            for bad in (-1, 1.5, True, "two", (1, -1))
        ),
        ([several], {"workers": 2}, r"can be changed\. Received"),
        ([(BATCH for _ in range(3))], {}, "read only once"),
        ([one], {}, "at least two batches"),
        ([several, plain], {}, "is not compiled"),
        ([several.map(lambda x, y: x), model], {}, without_targets),
        ([(np.ones((96, 3)),), model], {}, without_targets),
    ):
        with pytest.raises(ValueError, match=message):
            profile_pipeline(*arguments, **settings)
    assert_equal(model, before)
    with pytest.raises(TypeError, match=r"profile_pipeline\(data, model\)"):
        profile_pipeline(model, one)
    with pytest.raises(TypeError, match=r"an object of type ndarray$"):
        profile_pipeline(*BATCH)


@pytest.mark.parametrize(
    ("executed", "count", "taken"),
    [(8, 100, 104), (700, 599, 600), (2500, 2499, 2500)],
)
def test_executions_of_many_steps_are_counted_in_batches(
    executed, count, taken
):
    model = timed(built=True, steps_per_execution=executed)
    with temporary_step(model, count) as step:
        report = measure(batches(-1), count, step=step).report
    assert report.steps == taken
    # Once more before, since the first call traced.
    assert len(model.stall_clock.step_ends) == 2 * taken
    assert model.steps_per_execution == executed


@pytest.mark.quick
def test_data_shorter_than_an_execution_is_measured():
    model = timed(built=True, steps_per_execution=50)
    profile = profile_pipeline(batches(5), model, batches=100)
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
    trained(model, batches(CAPACITY + 88), callbacks=[stall])
    report = stall.reports[0]
    # All that the log had no room for, and the one that found the end.
    assert report.not_recorded == 88 + 1
    assert (report.steps, report.data_stall_s, report.step_ms) == (None,) * 3
    assert "no figures, since 89 fetches" in stall.message
    with pytest.raises(RuntimeError, match=r"not recorded.*steps_per_exec"):
        profile_pipeline(batches(-1), model, batches=3)


MODES = {
    "sums": lambda: kpg.Accumulated(steps=4),
    "noise": lambda: kpg.Vectorized(
        kpg.ClippedMean(1.0, noise_multiplier=1.0, seed=1)
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_a_gradient_mode_holds_is_left_alone(mode):
    x = normal(16, 3)
    y = x[:, :1]
    data = tf.data.Dataset.from_tensor_slices((100 * x, y)).batch(4)
    plain = net(shape=(3,), units=1)
    start, found = plain.get_weights(), []
    for profiled in (False, True):
        model = compiled(plain, MODES[mode](), jit_compile=False)
        model.set_weights(start)
        if mode == "sums":  # one batch waits for three more
            model.train_on_batch(x[:4], y[:4])
        if profiled:
            state = model.gradient_state
            profile_pipeline(data, model, batches=2)
            assert model.gradient_state is state
        trained(model, x[4:], y[4:], batch_size=4)
        found.append(model.get_weights())
    assert_equal(*found)


def test_keras_draws_go_on_as_if_nothing_had_been_profiled():
    class Noisy(keras.layers.Layer):
        def call(self, x):
            return x + keras.random.normal((4, 1))

    keras.random.normal([])  # makes Keras's own seed generator
    state = global_seed_generator().state
    model = small(keras.layers.Dense(1), Noisy())
    before = np.array(state)
    profile_pipeline(batches(-1), model, batches=1)
    np.testing.assert_array_equal(np.array(state), before)
    trained(model, batches(1))
    assert (np.array(state) != before).any()


def test_a_model_without_targets_is_profiled():
    class Reconstruction(keras.Model):
        def train_step(self, data):
            return {"loss": tf.reduce_mean(self(data))}

    data = batches(8).map(lambda x, y: x)
    model = net(shape=(3,), cls=Reconstruction)
    profile = profile_pipeline(data, compiled(model), batches=2)
    assert profile.model_batches_per_s
    assert profile_pipeline(data, batches=2).model_batches_per_s is None


@pytest.mark.quick
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
    for workers, knee in ((found, found[2]), (found[-1:], None), ([], None)):
        report = StallReport(steps=3, data_stall_s=0.0, step_ms=100.0)
        rates = {"alone": report, "model": None, "together": report}
        profile = kpg.diagnose.PipelineProfile(
            **rates, changes={}, workers=workers
        )
        assert profile.knee is knee
        failed = "8 processes (OSError)     failed"
        assert (failed in str(profile)) == (found[-1] in workers)


class DataLoader:
    """As torch's, as far as the sweep looks."""

    def __init__(self, dataset, num_workers=0, **settings):
        self.dataset, self.num_workers = dataset, num_workers
        self.settings = settings
        self.__dict__.update(settings)


def test_a_torch_loader_has_processes_only_and_an_error_has_its_row():
    settings = {"batch_size": 4, "sampler": "mine", "collate_fn": len}
    settings["drop_last"] = True
    seen = []

    def measured(loader):
        assert loader.settings == settings
        seen.append(loader.num_workers)
        if loader.num_workers == 4:
            raise OSError("no more processes")
        report = StallReport(steps=3, data_stall_s=0.02, step_ms=0.0)
        return Measurement(report, memory=2**20)

    loader = DataLoader([1], **settings)
    found = try_workers(loader, (0, 2, 4), measured)
    assert seen == [0, 2, 4]
    assert [trial.batches_per_s for trial in found] == [100.0, 100.0, None]
    assert (found[0].memory_mib, found[2].error) == (1.0, "OSError")
