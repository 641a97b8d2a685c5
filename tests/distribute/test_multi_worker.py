"""MultiWorkerMirroredStrategy: processes on this machine train as one."""

import subprocess
import time

import keras
import pytest

from tests.distribute.cluster import Cluster

WORKER = "tests.distribute.worker"
# From the death of a worker to the end of the others; measured: 1 to 12 s.
LIMIT = 30
MODES = ["batch", "per_sample", "vectorized", "accumulated"]


@pytest.fixture(scope="module")
def two():
    with Cluster(WORKER, 2, "train-and-use", *MODES) as cluster:
        return cluster.results(timeout=240)


@pytest.fixture(scope="module")
def three():
    with Cluster(WORKER, 3, "train", "vectorized", "accumulated") as cluster:
        return cluster.results(timeout=240)


@pytest.mark.parametrize("mode", MODES)
def test_two_workers(two, mode):
    assert [worker[mode] for worker in two] == [None, None], two[0][mode]


@pytest.mark.parametrize("mode", ["vectorized", "accumulated"])
def test_three_workers(three, mode):
    assert [worker[mode] for worker in three] == [None] * 3, three[0][mode]


def test_evaluate_predict_save_and_load(two):
    assert [worker["use"] for worker in two] == [None, None], two[0]["use"]


def test_keras_fit_fails_here(two):
    if all(worker["plain"] is None for worker in two):
        pytest.skip(f"Keras {keras.__version__} fits on several workers")
    # keras-team/keras#20585
    for worker in two:
        assert "PerReplica" in worker["plain"]


def test_a_worker_is_killed_and_all_start_again(tmp_path):
    arguments = WORKER, 2, "resume", tmp_path / "backup", 6
    with Cluster(*arguments) as cluster:
        killed, left = cluster.processes[1], cluster.processes[0]
        wait_for(lambda: "epoch 3" in cluster.output(1)[0], cluster)
        killed.kill()
        start = time.monotonic()
        try:
            code = left.wait(LIMIT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"The other worker did not end in {LIMIT} seconds.")
        assert time.monotonic() - start < LIMIT
        assert code != 0
        assert "Another worker has most likely stopped" in cluster.output(0)[1]
    with Cluster(*arguments) as cluster:
        results = cluster.results(timeout=120)
        begun = cluster.output(0)[0].splitlines()[0]
    assert begun in ("epoch 2", "epoch 3", "epoch 4")
    assert [r["resume"] for r in results] == [None, None], results


def wait_for(condition, cluster, timeout=120):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, cluster.output(0)[1][-3000:]
        assert all(p.poll() is None for p in cluster.processes), [
            cluster.output(i)[1][-3000:] for i in range(cluster.size)
        ]
        time.sleep(0.05)
