"""Readings of instruments in run records, and their export."""

import pytest

from keras_pergrad.runs import export, read_run
from keras_pergrad.runs.recording import RunWriter
from tests.runs.records import write
from tests.trackers.fits import Kept
from tests.trackers.readings import reading


def test_they_are_read_as_they_were_and_a_resumed_run_replaces_them(tmp_path):
    for steps, make, reads, expected in (
        ([1, 5, 9], RunWriter.create, reading, [1, 5, 9]),
        ([5, 6], RunWriter.resume, reading, [1, 5, 6]),
        # By records without a reading, too.
        ([5], RunWriter.resume, None, [1]),
    ):
        found = read_run(write(tmp_path, steps, make, reads)).readings
        # By their words: an undefined value is not equal to itself.
        assert repr(found) == repr([reading(step) for step in expected])


def test_export(tmp_path):
    path = write(tmp_path, [1, 5], reads=reading)
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
        export(write(tmp_path, [1], reads=reading), to=full)
    assert full.calls == ["begin", "end"]
    with pytest.raises(FileNotFoundError, match="Expected a run's directory"):
        export(tmp_path / "nowhere", to=full)
