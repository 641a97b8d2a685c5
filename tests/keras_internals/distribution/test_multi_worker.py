"""MultiWorkerMirroredStrategy: processes on this machine train as one."""

import time

import keras
import pytest

from tests.keras_internals.distribution.cluster import Cluster

WORKER = "tests.keras_internals.distribution.worker"
# From the death of a worker to the end of the others; measured: 1 to 12 s.
LIMIT = 30
MODES = ["batch", "per_sample", "vectorized", "accumulated"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two workers find after one was killed and both started again.

    They go on with their training first, and train in all modes then.
    """
    folder = str(tmp_path_factory.mktemp("backup") / "backup")
    arguments = {"folder": folder, "epochs": 6}
    tries = (killed(arguments) for _ in range(9))
    found = next(filter(None, tries))
    with Cluster(WORKER, 2, names=MODES, **arguments, last=True) as cluster:
        found["workers"] = cluster.results()
        found["begun"] = cluster.output(0)[0].splitlines()[0]
    return found


def killed(arguments):
    """What the other worker does when one is killed in the third epoch.

    None if a machine that pauses has parted them before.
    """
    settings = {"names": [], "patient": False, "stay_in": 3, **arguments}
    with Cluster(WORKER, 2, **settings) as cluster:
        if not reaches(lambda: "epoch 3" in cluster.output(1)[0], cluster):
            return None
        cluster.processes[1].kill()
        start = time.monotonic()
        code = cluster.processes[0].wait()
        seconds, error = time.monotonic() - start, cluster.output(0)[1]
    return {"code": code, "seconds": seconds, "error": error}


@pytest.fixture(scope="module")
def three():
    names = ["vectorized", "accumulated"]
    with Cluster(WORKER, 3, names=names) as cluster:
        return cluster.results()


def test_the_others_end_when_a_worker_is_killed(two):
    assert two["code"] != 0
    assert "Another worker has most likely stopped" in two["error"]


@pytest.mark.timing
def test_the_others_end_soon(two):
    assert two["seconds"] < LIMIT


def test_all_go_on_from_the_backup(two):
    assert two["begun"] in ("epoch 2", "epoch 3", "epoch 4")
    found = [worker["resume"] for worker in two["workers"]]
    assert found == [None, None], found[0]


@pytest.mark.parametrize("mode", MODES)
def test_two_workers(two, mode):
    assert [worker[mode] for worker in two["workers"]] == [None, None], two


@pytest.mark.parametrize("mode", ["vectorized", "accumulated"])
def test_three_workers(three, mode):
    assert [worker[mode] for worker in three] == [None] * 3, three[0][mode]


def test_evaluate_predict_save_and_load(two):
    assert [worker["use"] for worker in two["workers"]] == [None, None], two


def test_keras_fit_fails_here(two):
    if all(worker["plain"] is None for worker in two["workers"]):
        pytest.skip(f"Keras {keras.__version__} fits on several workers")
    # keras-team/keras#20585
    for worker in two["workers"]:
        assert "PerReplica" in worker["plain"]


def reaches(condition, cluster):
    """Wait for a condition; False if a worker ends before."""
    while not condition():
        if any(process.poll() is not None for process in cluster.processes):
            return False
        time.sleep(0.05)
    return True
