"""Numbers of workers, tried."""

import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.analysis.pipelines.loading_rate import Measured
from keras_pergrad.analysis.pipelines.profile import profile_pipeline
from keras_pergrad.analysis.pipelines.stall_accounting import StallReport
from keras_pergrad.analysis.pipelines.worker_sweep import (
    WorkerTrial,
    knee,
    trials,
    worker_counts,
)
from tests.analysis.pipelines.slow_data import py_dataset
from tests.callbacks import recorded_stalls

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def test_threads_and_processes_of_a_pydataset_are_tried(monkeypatch):
    def figures(data, with_model):
        return {"wait_ms": 6.0 if data.workers > 1 else 16.0, "step_ms": 0.0}

    recorded_stalls.say_in_profile(monkeypatch, figures)
    data = py_dataset()
    profile = profile_pipeline(data, batches=12, workers=(0, 3))
    tried = [(trial.workers, trial.by) for trial in profile.workers]
    assert tried == [(0, "threads"), (3, "threads"), (3, "processes")]
    assert profile.knee.workers == 3
    assert data.workers == 1
    assert not data.use_multiprocessing
    lines = str(profile).split("\n")
    assert any("<- enough" in line and "3 " in line for line in lines)


@pytest.mark.timing
def test_three_threads_load_faster_than_the_training_thread():
    profile = profile_pipeline(py_dataset(), batches=12, workers=(0, 3))
    none, threads, _ = (trial.batches_per_s for trial in profile.workers)
    assert threads > none
    assert profile.knee.workers == 3


def test_the_knee_is_the_fewest_workers_near_the_best():
    found = [
        WorkerTrial(0, "threads", 10.0),
        WorkerTrial(2, "threads", 91.0),
        WorkerTrial(2, "processes", 95.0),
        WorkerTrial(4, "threads", 100.0),
        WorkerTrial(8, "processes", None, error="OSError"),
    ]
    assert knee(found) is found[2]
    assert knee(found[-1:]) is None
    assert knee([]) is None


class DataLoader:
    """As torch's, as far as the sweep looks."""

    def __init__(self, dataset, num_workers=0, **settings):
        self.dataset = dataset
        self.num_workers = num_workers
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

    def measure(loader):
        assert loader.settings == settings
        seen.append(loader.num_workers)
        if loader.num_workers == 4:
            raise OSError("no more processes")
        report = StallReport(steps=3, data_stall_s=0.02, step_ms=0.0)
        return Measured(report, None, memory=2**20)

    found = trials(
        DataLoader([1], **settings), "dataloader", (0, 2, 4), measure
    )
    assert seen == [0, 2, 4]
    assert [trial.batches_per_s for trial in found] == [100.0, 100.0, None]
    assert found[0].memory_mib == 1.0
    assert found[2].cells(False) == ("4 processes (OSError)", "failed", "")


@pytest.mark.parametrize("bad", [-1, 1.5, True, "two", (1, -1)])
def test_bad_numbers_of_workers_are_refused(bad):
    with pytest.raises(ValueError, match=r"integers of at least 0.*Received"):
        worker_counts(bad)
    assert worker_counts((np.int64(4), 0, 4)) == (0, 4)


def test_data_without_workers_is_refused():
    data = tf.data.Dataset.range(4)
    with pytest.raises(ValueError, match=r"which have workers\. Received"):
        profile_pipeline(data, workers=2)
