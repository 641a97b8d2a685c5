"""Reading runs, whole, growing, torn and damaged, and their export."""

import dataclasses
import errno
import fcntl
import json
import math
from unittest import mock

import numpy as np
import pytest

from keras_pergrad.diagnose import compare_runs
from keras_pergrad.runs import export, list_runs, read_run
from keras_pergrad.runs.recorder import Recorder
from tests.runs.records import SKETCH, info, reading, sketches, write
from tests.trackers import readings
from tests.trackers.fits import Kept


@pytest.fixture
def run(tmp_path):
    """The directory of a run with records of steps 1 to 5."""
    return write(tmp_path, range(1, 6))


def test_what_is_written_is_read(tmp_path, run):
    found = read_run(run)
    assert list_runs(tmp_path) == [str(run)]
    assert len(found) == 5
    assert found.info["architecture"] == "ab12"
    assert found.info["variable_sketch_size"] == 16
    assert found.scalars["step"].dtype == np.int64
    written = [reading(step) for step in range(1, 6)]
    drawn = [sketches(step) for step in range(1, 6)]
    for name, values in (
        ("norms", [one.by_variable["norm"] for one in written]),
        ("variances", [one.by_variable["variance"] for one in written]),
        ("variable_sketches", [one["variable_sketches"] for one in drawn]),
        ("sketches", [one["sketch"] for one in drawn]),
    ):
        np.testing.assert_array_equal(found.read(name), values)
    assert found.scalars["loss"].tolist() == [one.loss for one in written]
    assert np.isnan(found.scalars["gradient_variance"]).all()


@pytest.mark.parametrize("records", [[0], [4], [0, 1, 2], [1, 4], [3, 0], []])
def test_a_part_is_read(run, records):
    run = read_run(run)
    for name in ("norms", "variances", "variable_sketches", "sketches"):
        expected = run.read(name)[np.array(records, int)]
        np.testing.assert_array_equal(run.read(name, records), expected)


def test_what_is_not_recorded_cannot_be_read(run):
    with pytest.raises(ValueError, match=r"`name` .*name='step'"):
        read_run(run).read("step")


def test_the_files_are_plain_json_and_float32(run):
    lines = (run / "readings.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]
    rows = np.fromfile(run / "arrays.f32", "<f4").reshape(5, -1)
    assert rows.shape == (5, 2 * (2 + 16) + SKETCH)
    variables = rows[2][:-SKETCH].reshape(2, 2 + 16)
    norms = reading(3).by_variable["norm"]
    np.testing.assert_array_equal(variables[:, 0], norms)
    facts = json.loads((run / "run.json").read_text())
    assert (facts["format"], facts["run"]) == (3, "first")


def test_numbers_that_are_not_finite(tmp_path):
    figures = {"gradient_norm": math.inf, "gradient_variance": -math.inf}
    one = reading(1, loss=math.nan, variances=False, **figures)
    found = read_run(write(tmp_path, [1], reads=lambda step: one))
    assert np.isnan(found.scalars["loss"][0])
    assert found.scalars["gradient_norm"][0] == math.inf
    assert found.scalars["gradient_variance"][0] == -math.inf
    assert np.isnan(found.scalars["gradient_snr"][0])
    assert np.isnan(found.read("variances")[0]).all()
    assert "variance" not in found.readings[0].by_variable


def assert_same(found, written):
    """Assert that readings are equal, their arrays to the bit."""
    arrays = {"by_variable": None, "figures": None}
    assert vars(found) | arrays == vars(written) | arrays
    assert repr(found.figures) == repr(written.figures)  # NaN is not NaN
    assert list(found.by_variable) == list(written.by_variable)
    for name, values in written.by_variable.items():
        assert found.by_variable[name].dtype == values.dtype == np.float32
        assert found.by_variable[name].tobytes() == values.tobytes(), name


def test_readings_come_back_to_the_bit(tmp_path):
    random = np.random.default_rng(1)
    bits = random.integers(0, 2**32, (50, 2), dtype=np.uint32)
    odd = bits.view(np.float32)  # NaN, infinite and subnormal, too
    odd = np.where(np.isnan(odd), np.float32(np.nan), odd)

    def one(step):
        given = reading(step)
        more = {"norm": odd[step], "alpha": odd[-step]}
        return dataclasses.replace(
            given,
            by_variable=given.by_variable | more,
            histograms=readings.reading(step).histograms,
            layers={"dead": ("dense",), "exploding": ()},
            figures={"gradient_snr": math.nan, "gradient_norm": 1e-320},
        )

    found = read_run(write(tmp_path, range(1, 50), reads=one)).readings
    for step in range(1, 50):
        assert_same(found[step - 1], one(step))


def test_a_run_is_read_while_it_grows(tmp_path):
    with Recorder.start(tmp_path, info()) as recorder:
        for step in range(1, 5):
            found = read_run(recorder.directory)
            assert len(found) == step - 1
            assert found.read("sketches").shape == (step - 1, SKETCH)
            assert found.scalars["step"].shape == (step - 1,)
            recorder.append(reading(step), **sketches(step))
        assert found.read("norms").shape == (3, 2)
        recorder.append(reading(2), **sketches(2))
        with pytest.raises(OSError, match="resumed while it was read"):
            found.read("norms")


def test_a_record_that_is_cut_at_any_byte_is_passed_over(run):
    """A killed process or a power cut leaves one; the next goes on there."""
    content = (run / "readings.jsonl").read_bytes()
    rows = (run / "arrays.f32").read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    for end in range(start, len(content) + 1):
        (run / "readings.jsonl").write_bytes(content[:end])
        found = read_run(run)
        assert len(found) == 4 + (end == len(content))
        assert found.read("sketches").shape == (len(found), SKETCH)
    for end in range(len(rows) // 5 * 4, len(rows), 7):
        (run / "readings.jsonl").write_bytes(content[:start])
        (run / "arrays.f32").write_bytes(rows[:end])
        assert len(read_run(run).readings) == 4
        write(run.parent, [5], Recorder.resume)
        assert (run / "readings.jsonl").read_bytes() == content
        assert (run / "arrays.f32").read_bytes() == rows


@pytest.mark.parametrize("folder", ["?a=b#c%20", "with 'quotes'"])
def test_any_directory_will_do(tmp_path, folder):
    write(tmp_path / folder, [1])
    (path,) = list_runs(tmp_path / folder)
    assert len(read_run(path)) == 1


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=no_locks))
    assert len(read_run(write(tmp_path, [1]))) == 1


def test_damaged_files_are_said(run):
    lines = (run / "readings.jsonl").read_bytes()
    for name, content in (
        ("readings.jsonl", b"x" * 20 + lines[20:]),
        ("readings.jsonl", b"{}\n"),
        ("run.json", b""),
        ("run.json", b"[]"),
    ):
        kept = (run / name).read_bytes()
        (run / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged or.*again"):
            read_run(run)
        (run / name).write_bytes(kept)
    rows = (run / "arrays.f32").read_bytes()
    (run / "arrays.f32").write_bytes(rows[:-4])
    with pytest.raises(ValueError, match=r"rows are missing"):
        read_run(run).read("sketches")
    (run / "arrays.f32").unlink()
    with pytest.raises(ValueError, match=r"it is missing"):
        read_run(run).read("sketches")


def test_a_run_that_may_not_be_written_is_read(run):
    for path in run.iterdir():
        path.chmod(0o444)
    run.chmod(0o555)
    try:
        assert len(read_run(run).read("sketches")) == 5
    finally:
        run.chmod(0o755)


def assert_refused(run, said):
    """Assert that whoever uses a run refuses it, and leaves its files."""
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for use in (
        lambda: read_run(run),
        lambda: Recorder.start(run.parent, info()),
        lambda: Recorder.resume(run.parent, info()),
        lambda: compare_runs(run.parent),
    ):
        with pytest.raises(ValueError, match=said):
            use()
    assert before == {path.name: path.read_bytes() for path in run.iterdir()}


def test_records_of_another_version_are_refused(run):
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "format": 9}))
    assert_refused(run, r"format 3\. Received: format 9")


def test_a_run_of_an_older_version_is_refused_by_name(tmp_path):
    run = tmp_path / "first"
    run.mkdir()
    (run / "run.sqlite").write_bytes(b"SQLite format 3")
    assert list_runs(tmp_path) == [str(run)]
    assert_refused(run, r"'run\.sqlite', as version 1")


def test_what_is_no_run_is_said(tmp_path, run):
    with pytest.raises(FileNotFoundError, match=r"a file 'run\.json'"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        list_runs(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    assert list_runs(tmp_path) == [str(run)]


def test_export(run):
    kept = Kept()
    export(run, to=kept)
    assert kept.calls == ["begin", *["write"] * 5, "end"]
    assert kept.runs[0].run == "first"
    for found, step in zip(kept.readings, range(1, 6), strict=True):
        assert_same(found, reading(step))


def test_an_export_that_fails_says_so(run):
    full = Kept()
    full.write = mock.Mock(side_effect=OSError("No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        export(run, to=full)
    assert full.calls == ["begin", "end"]
    with pytest.raises(FileNotFoundError, match="Expected a run's directory"):
        export(run / "nowhere", to=full)
