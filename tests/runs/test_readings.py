"""Readings of instruments in run records, and their export."""

import sqlite3

import pytest

from keras_pergrad.runs import RunWriter, export, read_run
from tests.runs.records import info, record
from tests.trackers.fits import Kept
from tests.trackers.readings import reading


def write(tmp_path, steps, make=RunWriter.create, reads=reading):
    with make(tmp_path, info()) as writer:
        for step in steps:
            writer.append(**record(step), reading=reads and reads(step))
    return tmp_path / "first"


def as_earlier_versions(path):
    """Turn a run into one without the table of readings."""
    connection = sqlite3.connect(path / "run.sqlite")
    connection.execute("DROP TABLE readings")
    connection.commit()
    connection.close()


def same(readings, steps):
    # By their words: an undefined value is not equal to itself.
    assert repr(readings) == repr([reading(step) for step in steps])


def test_they_are_read_as_they_were(tmp_path):
    same(read_run(write(tmp_path, [1, 5])).readings, [1, 5])


def test_a_resumed_run_replaces_the_later_ones(tmp_path):
    write(tmp_path, [1, 5, 9])
    run = read_run(write(tmp_path, [5, 6], RunWriter.resume))
    same(run.readings, [1, 5, 6])


def test_a_record_without_one_replaces_them_too(tmp_path):
    write(tmp_path, [1, 5])
    path = write(tmp_path, [5], RunWriter.resume, reads=None)
    first, second = read_run(path).readings
    same([first], [1])
    assert "norm_test" not in second.by_variable


def test_a_full_disk_takes_back_record_and_reading(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        writer._connection.execute("PRAGMA max_page_count = 1")
        step = 0  # SQLite keeps the pages that are there
        with pytest.raises(OSError, match="No space left"):  # noqa: PT012
            while step < 99:
                step += 1
                writer.append(**record(step), reading=reading(step))
    same(read_run(tmp_path / "first").readings, range(1, step))


def test_files_of_earlier_versions_are_read_and_resumed(tmp_path):
    path = write(tmp_path, [1, 5])
    as_earlier_versions(path)
    first, second = read_run(path).readings
    expected = record(5)
    assert (second.step, second.samples) == (5, 8)
    assert second.figures["gradient_norm"] == 5.0
    assert second.by_variable["norm"] == tuple(expected["norms"].tolist())
    assert second.by_variable["variance"] == tuple(
        expected["variances"].tolist()
    )
    assert second.variable_names == ("dense/kernel", "dense/bias")
    write(tmp_path, [9], RunWriter.resume)
    resumed = read_run(path).readings
    assert repr(resumed[:2]) == repr([first, second])
    same(resumed[2:], [9])


@pytest.mark.parametrize("earlier", [False, True])
def test_export(tmp_path, earlier):
    path = write(tmp_path, [1, 5])
    if earlier:
        as_earlier_versions(path)
    kept = Kept()
    export(path, to=kept)
    assert kept.calls == ["begin", "write", "write", "end"]
    assert kept.runs[0].run == "first"
    assert repr(kept.readings) == repr(read_run(path).readings)


def test_an_export_that_fails_says_so(tmp_path):
    class Full(Kept):
        def write(self, reading):
            raise OSError("No space left on device")

    full = Full()
    with pytest.raises(OSError, match="No space left"):
        export(write(tmp_path, [1]), to=full)
    assert full.calls == ["begin", "end"]
    with pytest.raises(FileNotFoundError, match="Expected a run's directory"):
        export(tmp_path / "nowhere", to=full)
