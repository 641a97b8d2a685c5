"""Runs in a local store of MLflow, read back by its client."""

import contextlib
import json
import shutil

import pytest

import keras_pergrad as kpg
from tests.trackers.fits import fitted
from tests.trackers.readings import INFO, PATHS, reading, written

mlflow = pytest.importorskip("mlflow")
# MLflow's tables are made with a strategy that SQLAlchemy 2.1 gives up.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A store with its tables, which take seconds to make."""
    folder = tmp_path_factory.mktemp("mlflow")
    path = folder / "mlflow.db"
    with contextlib.chdir(folder):  # where artifacts go
        mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(empty_store, tmp_path, monkeypatch):
    """The address of a store of a test's own."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def runs_of(client, experiment):
    known = client.get_experiment_by_name(experiment)
    return client.search_runs([known.experiment_id])


def history(client, run, name):
    metrics = client.get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in metrics]


def test_a_local_store_is_read_back(store, tmp_path):
    tracker = kpg.trackers.MLflow("team/digits", tracking_uri=store)
    written(tracker, reading(3), reading(10, **{"count (a,b)": 1.0}))
    tracker.end()
    tracker.end()
    client = mlflow.MlflowClient(store)
    (run,) = runs_of(client, "team/digits")
    assert run.info.run_name == "seed0"
    assert run.info.status == "FINISHED"
    assert run.data.params["batch_size"] == "8"
    assert run.data.tags["device"] == "cpu"
    known = {"gradient_norm", f"norm_test/{PATHS[0]}"}
    # Names are made those of MLflow.
    assert run.data.metrics.keys() == known | {"count _a_b_"}
    assert run.data.metrics["count _a_b_"] == 1.0
    tracker.begin(INFO)
    tracker.interrupt()
    tracker.end()
    states = sorted(r.info.status for r in runs_of(client, "team/digits"))
    assert states == ["FINISHED", "KILLED"]
    assert history(client, run, "gradient_norm") == [(3, 5.0), (10, 12.0)]
    artifacts = client.list_artifacts(run.info.run_id, "histograms")
    paths = [f"histograms/{step:09}.json" for step in (3, 10)]
    assert [artifact.path for artifact in artifacts] == paths
    path = client.download_artifacts(run.info.run_id, artifacts[0].path)
    with open(path) as file:
        histograms = json.load(file)
    assert histograms[f"gradient/{PATHS[0]}"]["counts"] == [1, 3]


def test_a_run_of_the_users_goes_on(store):
    mlflow.set_tracking_uri(store)
    try:
        with mlflow.start_run() as run:
            watch, _ = fitted(kpg.trackers.MLflow(run=run))
            mlflow.log_metric("mine", 1.0)
    finally:
        mlflow.set_tracking_uri(None)
    client = mlflow.MlflowClient(store)
    seen = history(client, run, "gradient_norm")
    assert [step for step, _ in seen] == watch.steps
    assert history(client, run, "mine") == [(0, 1.0)]


def test_a_run_and_an_experiment_are_refused():
    with pytest.raises(ValueError, match="belongs to an experiment already"):
        kpg.trackers.MLflow("digits", run="ab12")
