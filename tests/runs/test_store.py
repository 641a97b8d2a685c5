"""Reading runs, whole, growing and damaged."""

import math
import shutil
import sqlite3

import numpy as np
import pytest

from keras_pergrad.runs import list_runs, read_run
from keras_pergrad.runs.recording import RunWriter
from tests.runs.records import SKETCH, info, record, write


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
    assert found.sketches.shape == (5, SKETCH)
    for i in range(5):
        written = record(i + 1)
        for name in ("norms", "variances", "variable_sketches"):
            given = getattr(found, name)[i]
            np.testing.assert_array_equal(given, written[name])
        np.testing.assert_array_equal(found.sketches[i], written["sketch"])
        assert found.scalars["loss"][i] == written["scalars"]["loss"]
    assert np.isnan(found.scalars["gradient_variance"]).all()


@pytest.mark.parametrize("records", [[0], [4], [0, 1, 2], [1, 4], [3, 0], []])
def test_a_part_is_read(run, records):
    run = read_run(run, scalars=["loss"])
    assert set(run.scalars) == {"step", "epoch", "loss"}
    for name in ("norms", "variances", "variable_sketches", "sketches"):
        expected = getattr(run, name)[np.array(records, int)]
        np.testing.assert_array_equal(run.read(name, records), expected)


def test_what_is_not_recorded_cannot_be_read(run):
    with pytest.raises(ValueError, match=r"`scalars` .*Received: accuracy"):
        read_run(run, ["accuracy"])
    with pytest.raises(ValueError, match=r"`name` .*name='step'"):
        read_run(run).read("step")


def test_the_file_is_plain_sqlite(run):
    connection = sqlite3.connect(run / "run.sqlite")
    steps = connection.execute("SELECT step FROM records WHERE loss < 0.4")
    assert [step for (step,) in steps] == [2, 3, 4, 5]
    (vector,) = connection.execute(
        "SELECT variables FROM records WHERE step = 3"
    ).fetchone()
    connection.close()
    variables = np.frombuffer(vector, "<f4").reshape(2, 2 + 16)
    np.testing.assert_array_equal(variables[:, 0], record(3)["norms"])


def test_numbers_that_are_not_finite(tmp_path):
    values = {"loss": math.nan, "gradient_norm": math.inf, "gradient_snr": None}
    with RunWriter.create(tmp_path, info()) as writer:
        row = record(1, **values, gradient_variance=-math.inf)
        writer.append(**{**row, "variances": None})
    found = read_run(tmp_path / "first")
    assert np.isnan(found.scalars["loss"][0])
    assert found.scalars["gradient_norm"][0] == math.inf
    assert found.scalars["gradient_variance"][0] == -math.inf
    assert np.isnan(found.scalars["gradient_snr"][0])
    assert np.isnan(found.variances[0]).all()


def test_a_run_is_read_while_it_grows(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        for step in range(1, 5):
            found = read_run(writer.directory)
            assert len(found) == step - 1
            assert found.sketches.shape == (step - 1, SKETCH)
            assert found.scalars["step"].shape == (step - 1,)
            writer.append(**record(step))
        writer.append(**record(2))
        with pytest.raises(OSError, match="resumed while it was read"):
            assert found.norms is None


@pytest.mark.parametrize("folder", ["?a=b#c%20", "with 'quotes'"])
def test_any_directory_will_do(tmp_path, folder):
    write(tmp_path / folder, [1])
    (path,) = list_runs(tmp_path / folder)
    assert len(read_run(path)) == 1


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    """SQLite's own way to say so, for every connection that locks."""
    connect = sqlite3.connect

    class Locking(sqlite3.Connection):
        def execute(self, *args):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_RDLOCK
            raise error

    def without_locks(database, **options):
        unlocked = database.endswith("nolock=1")
        factory = sqlite3.Connection if unlocked else Locking
        return connect(database, factory=factory, **options)

    monkeypatch.setattr(sqlite3, "connect", without_locks)
    assert len(read_run(write(tmp_path, [1]))) == 1


def test_a_damaged_file_is_said(run):
    content = (run / "run.sqlite").read_bytes()
    for damaged in (content[: len(content) // 2], b"x" * 9000):
        (run / "run.sqlite").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is damaged or.*copy it again"):
            assert read_run(run).sketches is None
    (run / "run.sqlite").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        read_run(run)


def test_a_run_that_may_not_be_written_is_read(run):
    copy = run.parent / "copy"
    shutil.copytree(run, copy)
    (copy / "run.sqlite").chmod(0o444)
    copy.chmod(0o555)
    try:
        assert len(read_run(copy).sketches) == 5
    finally:
        copy.chmod(0o755)


def set_format(run, version):
    connection = sqlite3.connect(run / "run.sqlite")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def test_records_of_another_version_are_refused(run):
    set_format(run, 1)
    with pytest.raises(ValueError, match=r"of format 2\. Received: format 1"):
        read_run(run)
    before = (run / "run.sqlite").read_bytes()
    for make in (RunWriter.create, RunWriter.resume):
        with pytest.raises(ValueError, match="Received: format 1"):
            make(run.parent, info())
    assert (run / "run.sqlite").read_bytes() == before


def test_what_is_no_run_is_said(tmp_path, run):
    with pytest.raises(FileNotFoundError, match=r"a file 'run\.sqlite'"):
        read_run(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        list_runs(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    assert list_runs(tmp_path) == [str(run)]
