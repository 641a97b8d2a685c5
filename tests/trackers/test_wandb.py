"""Offline runs of Weights & Biases, read back from their files."""

import json
import struct

import pytest

import keras_pergrad as kpg
from keras_pergrad.runs import Histogram
from keras_pergrad.trackers.services import _join_bins
from tests.trackers.fits import fitted
from tests.trackers.readings import PATHS, written

wandb = pytest.importorskip("wandb")
_BLOCK = 32768


def _chunks(content):
    """Yield the entries of a transaction log: LevelDB's blocks and headers."""
    place, parts = 7, b""  # after the file's own header
    while place + 7 <= len(content):
        if _BLOCK - place % _BLOCK < 7:
            place += _BLOCK - place % _BLOCK
            continue
        size, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def read_back(directory):
    """Return the config, the rows, and the axes of the only offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits for the process that writes the file
    (path,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    config, rows, axes = {}, [], {}
    for chunk in _chunks(path.read_bytes()):
        record = Record.FromString(chunk)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            update = record.run.config.update
            config |= {u.key: json.loads(u.value_json) for u in update}
            config["project"] = record.run.project
            config["name"] = record.run.display_name
        elif kind == "history":
            rows.append(
                {
                    "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        elif kind == "exit":
            config["exit_code"] = record.exit.exit_code
        elif kind == "metric":
            axes[record.metric.name] = record.metric.step_metric
    return config, rows, axes


def test_an_offline_run_is_read_back(tmp_path):
    tracker = kpg.trackers.WandB("digits", dir=str(tmp_path), mode="offline")
    written(tracker).interrupt()
    tracker.end()
    tracker.end()
    config, rows, axes = read_back(tmp_path)
    assert config["project"] == "digits"
    assert config["exit_code"] == 1
    assert config["name"] == "seed0"
    assert config["batch_size"] == 8
    assert config["tags"] == {"device": "cpu"}
    assert [(r["update"], r["gradient_norm"]) for r in rows] == [
        (3, 5.0),
        (10, 12.0),
    ]
    assert rows[0][f"norm_test/{PATHS[0]}"] == 0.5
    assert "gradient_alpha" not in rows[0]
    assert rows[0][f"gradient/{PATHS[0]}/_type"] == "histogram"
    assert rows[0][f"gradient/{PATHS[0]}/values"] == [1, 3]
    assert rows[0][f"gradient/{PATHS[0]}/bins"] == [-1, 0, 0.25]
    assert axes["gradient_norm"] == "update"


def test_a_run_of_the_users_goes_on(tmp_path):
    with wandb.init(dir=str(tmp_path), mode="offline") as run:
        run.log({"mine": 1.0})
        watch, _ = fitted(kpg.trackers.WandB(run=run))
        run.log({"mine": 2.0})
    _, rows, _ = read_back(tmp_path)
    seen = [row["update"] for row in rows if "update" in row]
    assert seen == watch.steps
    assert [row["mine"] for row in rows if "mine" in row] == [1.0, 2.0]


def test_many_bins_are_joined(tmp_path):
    counts, edges = _join_bins(Histogram((1,) * 1025, tuple(range(1026))))
    assert counts == [3] * 341 + [2]
    assert edges == [*range(0, 1024, 3), 1025]


def test_a_run_and_a_project_are_refused():
    with pytest.raises(ValueError, match="arguments of a new one"):
        kpg.trackers.WandB("digits", run=object())
