"""Writing and reading runs, whole and damaged."""

import json
import math
import os
import warnings

import numpy as np
import pytest

from keras_pergrad.runs import (
    RunRecordWarning,
    RunWriter,
    list_runs,
    read_run,
)
from tests.runs.records import SKETCH, info, record


@pytest.fixture
def run(tmp_path):
    """The directory of a run with records of steps 1 to 5."""
    with RunWriter.create(tmp_path, info()) as writer:
        for step in range(1, 6):
            writer.append(**record(step))
    return tmp_path / "first"


def steps_of(path, **options):
    return read_run(path, **options).scalars["step"].tolist()


def append_bytes(path, data):
    with open(path, "ab") as file:
        file.write(data)


def test_what_is_written_is_read(tmp_path, run):
    found = read_run(run)
    assert list_runs(tmp_path) == [str(run)]
    assert len(found) == 5
    assert found.info["architecture"] == "ab12"
    assert found.info["variable_sketch_size"] == 16
    assert found.scalars["step"].dtype == np.int64
    assert found.sketches.shape == (5, SKETCH)
    for i in range(5):
        written = record(i + 1)
        np.testing.assert_array_equal(found.norms[i], written["norms"])
        np.testing.assert_array_equal(found.variances[i], written["variances"])
        np.testing.assert_array_equal(found.sketches[i], written["sketch"])
        np.testing.assert_array_equal(
            found.variable_sketches[i], written["variable_sketches"]
        )
        assert found.scalars["loss"][i] == written["scalars"]["loss"]
    assert np.isnan(found.scalars["gradient_variance"]).all()


def test_vectors_stay_on_disk(run):
    found = read_run(run)
    for array in (found.norms, found.sketches, found.variable_sketches):
        assert isinstance(array, np.memmap)


def test_the_files_are_plain(run):
    assert json.loads((run / "run.json").read_text())["format"] == 1
    lines = (run / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]
    rows = np.fromfile(run / "vectors.f32", "<f4").reshape(5, -1)
    assert rows.shape == (5, 2 + 2 + 2 * 16 + SKETCH)
    np.testing.assert_array_equal(rows[2, :2], record(3)["norms"])
    np.testing.assert_array_equal(rows[2, -SKETCH:], record(3)["sketch"])


def test_numbers_that_json_does_not_know(tmp_path):
    values = {"loss": math.nan, "gradient_norm": math.inf, "gradient_snr": None}
    with RunWriter.create(tmp_path, info()) as writer:
        row = record(1, **values, gradient_variance=-math.inf)
        writer.append(**{**row, "variances": None})
    text = (tmp_path / "first" / "records.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    found = read_run(tmp_path / "first")
    assert np.isnan(found.scalars["loss"][0])
    assert found.scalars["gradient_norm"][0] == math.inf
    assert found.scalars["gradient_variance"][0] == -math.inf
    assert np.isnan(found.scalars["gradient_snr"][0])
    assert np.isnan(found.variances[0]).all()


def test_a_torn_line_is_read_past(run):
    append_bytes(run / "vectors.f32", b"x" * 4 * (4 + 32 + SKETCH))
    append_bytes(run / "records.jsonl", b'{"step": 6, "epo')
    with pytest.warns(RunRecordWarning, match="unfinished.*Read the 5"):
        assert steps_of(run) == [1, 2, 3, 4, 5]


def test_a_torn_row_is_read_past(run):
    append_bytes(run / "vectors.f32", b"xyz")
    with pytest.warns(RunRecordWarning, match="the last record is unfinished"):
        assert steps_of(run) == [1, 2, 3, 4, 5]


def test_a_line_without_its_row_is_left_out(run):
    size = os.path.getsize(run / "vectors.f32")
    os.truncate(run / "vectors.f32", size - 4)
    with pytest.warns(RunRecordWarning, match="1 lines have no row"):
        assert steps_of(run) == [1, 2, 3, 4]


def test_a_damaged_row_is_left_out(run):
    rows = bytearray((run / "vectors.f32").read_bytes())
    rows[len(rows) // 2] ^= 1
    (run / "vectors.f32").write_bytes(rows)
    with pytest.warns(RunRecordWarning, match="1 records are damaged"):
        found = read_run(run)
    assert found.scalars["step"].tolist() == [1, 2, 4, 5]
    np.testing.assert_array_equal(found.norms[2], record(4)["norms"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_run(run, verify=False)) == 5


@pytest.mark.parametrize(
    "damage", [b"\0" * 9, b"[1, 2]", b'{"a": 1},{"step":2']
)
def test_a_damaged_line_is_left_out(run, damage):
    lines = (run / "records.jsonl").read_bytes().split(b"\n")
    lines[1] = damage
    (run / "records.jsonl").write_bytes(b"\n".join(lines))
    with pytest.warns(RunRecordWarning, match="1 records are damaged"):
        assert steps_of(run) == [1, 3, 4, 5]


def test_a_run_without_records_is_empty(tmp_path):
    RunWriter.create(tmp_path, info()).close()
    found = read_run(tmp_path / "first")
    assert len(found) == 0
    assert found.sketches.shape == (0, SKETCH)
    assert found.scalars["step"].shape == (0,)


def test_records_of_another_version_are_refused(run):
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(ValueError, match="expected records of format 1"):
        read_run(run)
    with pytest.raises(ValueError, match="Received: format 2"):
        RunWriter.resume(run.parent, info())


def test_what_is_no_run_is_said(tmp_path, run):
    with pytest.raises(FileNotFoundError, match=r"a file 'run\.json'"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        list_runs(tmp_path / "nowhere")
    (run / "run.json").write_text('{"format":')
    with pytest.raises(ValueError, match="expected to be JSON"):
        read_run(run)


def test_a_directory_without_info_is_no_run(tmp_path, run):
    (tmp_path / "other").mkdir()
    assert list_runs(tmp_path) == [str(run)]


def test_shapes_and_names_are_checked(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        with pytest.raises(ValueError, match=r"`norms` expected the shape"):
            writer.append(**{**record(1), "norms": [1.0]})
        with pytest.raises(ValueError, match=r"unknown \['accuracy'\]"):
            writer.append(**record(1, accuracy=1.0))
    with pytest.raises(ValueError, match="Expected an open run"):
        writer.append(**record(1))
    assert len(read_run(tmp_path / "first")) == 0
