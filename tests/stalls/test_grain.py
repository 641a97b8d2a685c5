"""Grain pipelines are known for what they are."""

import numpy as np
import pytest

from keras_pergrad.callbacks import DataStall
from keras_pergrad.keras_internals.data.sources import (
    read_threads,
    worker_processes,
)
from keras_pergrad.stalls.accounting import StallReport
from keras_pergrad.stalls.diagnosis import advise
from keras_pergrad.stalls.facts import Facts, kind_of
from keras_pergrad.stalls.profile import profile_pipeline
from tests.stalls import recorded_stalls
from tests.stalls.stall_truth import QUIET, timed

grain = pytest.importorskip("grain")
adapters = pytest.importorskip(
    "keras.src.trainers.data_adapters.grain_dataset_adapter"
)

pytestmark = [*QUIET, pytest.mark.usefixtures("two_cores")]

SAMPLES = 96


class Source:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.full(3, index, np.float32), np.ones(1, np.float32)


def map_dataset():
    return grain.MapDataset.source(Source()).batch(4)


def one_thread():
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    return map_dataset().to_iter_dataset(options)


def two_processes():
    options = grain.MultiprocessingOptions(num_workers=2)
    return map_dataset().to_iter_dataset().mp_prefetch(options)


def loader(**settings):
    return grain.DataLoader(
        data_source=Source(),
        sampler=grain.samplers.SequentialSampler(SAMPLES),
        operations=[grain.transforms.Batch(4)],
        **settings,
    )


@pytest.mark.parametrize(
    ("make", "threads", "processes"),
    [
        (map_dataset, 16, 0),
        (one_thread, 1, 0),
        (loader, 16, 0),
        (lambda: loader(worker_count=3), 16, 3),
        (two_processes, 0, 2),  # its workers read
    ],
)
def test_threads_and_processes_are_read(make, threads, processes):
    data = make()
    assert kind_of(data) == "grain"
    assert read_threads(data) == threads
    assert worker_processes(data) == processes


@pytest.mark.parametrize(
    ("make", "times", "threads", "processes"),
    [
        (one_thread, {"cpu_ms": 1.0}, 42, 0),  # 2 · ⌈(20 + 1) / 1⌉
        (one_thread, {}, 42, 0),  # or processes, if they compute
        # On a machine with other work nobody knows which.
        (one_thread, {"cpu_ms": 5.0, "ready_ms": 9.0}, 42, 0),
        (map_dataset, {"cpu_ms": 5.0, "ready_ms": 9.0}, 42, 0),
        (one_thread, {"cpu_ms": 40.0}, 0, 2),
        (map_dataset, {"cpu_ms": 1.0}, 42, 0),
        (map_dataset, {"cpu_ms": 40.0}, 0, 2),
        # 16 threads suffice.
        (map_dataset, {"cpu_ms": 1.0, "step_ms": 10.0}, None, None),
        (loader, {"cpu_ms": 1.0}, 42, 0),
        (loader, {"cpu_ms": 40.0}, 0, 2),
        (lambda: loader(worker_count=2), {"cpu_ms": 40.0}, None, None),
    ],
)
def test_the_code_gives_workers_as_printed(make, times, threads, *, processes):
    times = {"wait_ms": 20.0, "step_ms": 1.0, **times}
    report = recorded_stalls.lasting(StallReport(101), **times)
    advice = advise(Facts(report, make()))
    if threads is None:  # more workers bring nothing
        assert advice == []
        return
    assert [each.name for each in advice] == ["grain workers"]
    scope = {
        "grain": grain,
        "map_dataset": map_dataset(),
        "dataset": one_thread(),
        "source": Source(),
        "operations": [grain.transforms.Batch(4)],
    }
    sure = times.get("cpu_ms") is not None and "ready_ms" not in times
    text = advice[0].cause + advice[0].code
    assert ("num_workers=" in text) == (processes > 0 or not sure)
    exec(advice[0].code, scope)
    assert read_threads(scope["dataset"]) == threads
    assert worker_processes(scope["dataset"]) == processes


def test_a_stalled_fit_is_told_of_its_dataset(monkeypatch):
    recorded_stalls.say(monkeypatch, {"wait_ms": 9.0, "step_ms": 4.0})
    stall = DataStall()
    timed().fit(one_thread(), verbose=0, callbacks=[stall])
    assert [advice.name for advice in stall.advice] == ["grain workers"]
    assert "IterDataset" in stall.message


@pytest.mark.quick
def test_a_profile_of_grain():
    profile = profile_pipeline(map_dataset(), batches=6)
    assert profile.pipeline_batches_per_s > 0
    with pytest.raises(ValueError, match=r"a PyDataset or a torch DataLoader"):
        profile_pipeline(map_dataset(), workers=2)
