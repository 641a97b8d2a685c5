"""Grain pipelines are known for what they are."""

import time

import numpy as np
import pytest

from keras_pergrad.analysis.pipelines import grain_data
from keras_pergrad.analysis.pipelines.advice_table import advise
from keras_pergrad.analysis.pipelines.pipeline_facts import (
    cores,
    gather,
    kind_of,
)
from keras_pergrad.analysis.pipelines.profile import profile_pipeline
from keras_pergrad.callbacks import DataStall
from tests.callbacks import recorded_stalls
from tests.callbacks.stall_truth import Clock, TimedStepModel

grain = pytest.importorskip("grain")
adapters = pytest.importorskip(
    "keras.src.trainers.data_adapters.grain_dataset_adapter"
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
    pytest.mark.filterwarnings("ignore:data `x` was provided as a grain"),
]

SAMPLES, SLEEP = 96, 0.003


class Source:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(SLEEP)
        return np.full(3, index, np.float32), np.ones(1, np.float32)


def map_dataset():
    return grain.MapDataset.source(Source()).batch(4)


def one_thread():
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    return map_dataset().to_iter_dataset(options)


def loader(**settings):
    return grain.DataLoader(
        data_source=Source(),
        sampler=grain.samplers.SequentialSampler(SAMPLES),
        operations=[grain.transforms.Batch(4)],
        **settings,
    )


def fit(data):
    model = TimedStepModel(Clock(), 0.003)
    model.compile("sgd", "mse", jit_compile=False)
    stall = DataStall()
    model.fit(data, verbose=0, callbacks=[stall])
    return stall


def names(data, wait_ms=20.0, step_ms=1.0, cpu_ms=None):
    facts = gather(data, None, wait_ms, step_ms, cpu_ms=cpu_ms)
    return [given.name for given in advise(facts)]


@pytest.mark.parametrize("make", [map_dataset, one_thread, loader])
def test_all_three_classes_are_grain(make):
    assert kind_of(make()) == "grain"


def test_threads_and_processes_are_read():
    assert grain_data.read_threads(map_dataset()) == 16
    assert grain_data.read_threads(one_thread()) == 1
    assert grain_data.read_threads(loader()) == 16
    workers = grain.MultiprocessingOptions(num_workers=2)
    assert grain_data.worker_processes(one_thread()) == 0
    assert grain_data.worker_processes(loader(worker_count=3)) == 3
    many = map_dataset().to_iter_dataset().mp_prefetch(workers)
    assert grain_data.worker_processes(many) == 2


def test_the_advice_is_in_grains_words():
    assert names(one_thread(), cpu_ms=1.0) == ["grain read threads"]
    assert names(map_dataset(), cpu_ms=40.0) == ["grain processes"]
    assert names(loader(), cpu_ms=40.0) == ["grain processes"]
    many = loader(worker_count=2 * cores() + 1)
    assert names(many) == ["too many workers"]
    assert names(map_dataset(), cpu_ms=1.0, step_ms=10.0) == []


def test_one_thread_is_named_and_mended_as_printed(monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 9.0, "step_ms": 4.0})
    mended_as_printed()


@pytest.mark.timing
def test_the_printed_code_waits_less():
    before, after = mended_as_printed()
    assert _lost(after) < 0.8 * _lost(before)


def mended_as_printed():
    """Stalls before and after."""
    before = fit(one_thread())
    assert before.advice[0].name == "grain read threads"
    assert "IterDataset" in before.message
    assert "DataLoader" not in before.message
    scope = {"grain": grain, "map_dataset": map_dataset()}
    exec(before.advice[0].code, scope)
    after = fit(scope["dataset"])
    assert after.reports[0].steps == SAMPLES // 4
    return before, after


def _lost(stall):
    report = stall.reports[0]
    return report.data_stall_s + report.first_batch_s


@pytest.mark.parametrize("make", [map_dataset, one_thread, loader])
def test_the_code_runs_as_printed(make):
    scope = {
        "grain": grain,
        "map_dataset": map_dataset(),
        "dataset": one_thread(),
        "source": Source(),
        "sampler": grain.samplers.SequentialSampler(SAMPLES),
        "operations": [grain.transforms.Batch(4)],
    }
    for cpu_ms in (1.0, 40.0):
        facts = gather(make(), None, 20.0, 1.0, cpu_ms=cpu_ms)
        for advice in advise(facts):
            exec(advice.code, scope)
            made = scope.get("loader") or scope["dataset"]
            assert kind_of(made) == "grain"
            if advice.name == "grain processes":
                processes = grain_data.worker_processes(scope["dataset"])
                assert processes == max(cores(), 2)


def test_a_profile_has_grains_own_stages():
    profile = profile_pipeline(map_dataset(), batches=6)
    assert profile.stages[0].name == "source(Source)"
    assert profile.slowest_stage[0] in [row.name for row in profile.stages]
    assert profile.stages[0].element_ms >= 1e3 * SLEEP


def test_threads_of_a_loader_are_swept():
    profile = profile_pipeline(loader(), batches=12, workers=(1, 8))
    # Its worker processes fail in Keras 3.15, so they are not tried.
    assert [trial.by for trial in profile.workers] == ["threads"] * 2
    assert all(trial.batches_per_s > 0 for trial in profile.workers)
    assert "8 threads" in str(profile)


@pytest.mark.timing
def test_more_threads_of_a_loader_load_faster():
    profile = profile_pipeline(loader(), batches=12, workers=(1, 8))
    one, eight = (trial.batches_per_s for trial in profile.workers)
    assert eight > one


@pytest.mark.timing
def test_the_source_that_sleeps_is_the_slowest_stage():
    profile = profile_pipeline(map_dataset(), batches=6)
    assert profile.slowest_stage[0] == "source(Source)"
