"""profile_pipeline measures, and leaves the model as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

import keras_pergrad as kpg
from keras_pergrad.analysis.pipelines.dry_run import untrained
from keras_pergrad.analysis.pipelines.loading_rate import measure
from keras_pergrad.analysis.pipelines.profile import profile_pipeline
from keras_pergrad.analysis.pipelines.wait_log import CAPACITY
from keras_pergrad.callbacks import DataStall
from tests.analysis.pipelines.slow_data import py_dataset, serial_map
from tests.callbacks.stall_truth import BATCH, Clock, TimedStepModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
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
    assert set(profile.what_if) == {"prefetch", "parallel map", "cache"}
    assert "parallel map" in str(profile)


@pytest.mark.timing
def test_a_cache_is_seen_to_help():
    profile = profile_pipeline(serial_map(), built(), batches=10)
    assert profile.pipeline_batches_per_s < 1 / 0.016
    assert profile.what_if["cache"][1] < 0.5 * profile.wait_ms
    assert profile.slowest_stage[0] == "map(call) + batch"


@pytest.mark.timing
def test_parallel_maps_are_seen_to_help():
    profile = profile_pipeline(serial_map(), built(), batches=15)
    as_it_is = profile.together_batches_per_s
    assert profile.what_if["parallel map"][0] > 1.2 * as_it_is


def test_a_pydataset_is_tried_with_workers():
    data = py_dataset()
    profile = profile_pipeline(data, batches=15)
    assert profile.model_batches_per_s is None
    rate, wait = profile.what_if["4 workers"]
    assert rate > 0
    assert wait >= 0
    assert data.workers == 1


@pytest.mark.timing
def test_workers_are_seen_to_help():
    profile = profile_pipeline(py_dataset(), batches=15)
    rate, wait = profile.what_if["4 workers"]
    assert rate > 1.2 * profile.together_batches_per_s
    assert wait < profile.wait_ms


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
    with untrained(model, batches) as step:
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
