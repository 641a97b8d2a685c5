"""Names, resuming, several processes, full disks and killed processes."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import pytest

from keras_pergrad.runs import RunRecordWarning, RunWriter, read_run
from tests.runs.records import VARIABLES, info, record

# Without the package's own __init__, which imports TensorFlow.
WRITE = """
import sys, types
package = types.ModuleType("keras_pergrad")
package.__path__ = ["keras_pergrad"]
sys.modules["keras_pergrad"] = package
from keras_pergrad.runs import RunWriter
from tests.runs.records import info, record
"""
WRITE_FOREVER = (
    WRITE
    + """
with RunWriter.create(sys.argv[1], info(sys.argv[2])) as writer:
    print("ready", flush=True)
    for step in range(1, 100_000_000):
        writer.append(**record(step))
"""
)


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def write(log_dir, steps, make=RunWriter.create, **changes):
    with make(log_dir, info(**changes)) as writer:
        for step in steps:
            writer.append(**record(step))
    return read_run(writer.directory).scalars["step"].tolist()


def test_an_existing_name_is_refused(tmp_path):
    write(tmp_path, [1, 2])
    with pytest.raises(FileExistsError, match="a run 'first' with 2 records"):
        RunWriter.create(tmp_path, info())
    assert len(read_run(tmp_path / "first")) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"variables": [*VARIABLES, {"path": "more/bias", "shape": [3]}]},
        {"variables": VARIABLES[:1]},
        {"sketch_size": 64},
        {"format": 2},
    ],
)
def test_a_run_of_another_layout_keeps_every_byte(tmp_path, changes):
    """Rows of another size look damaged, each of them, but are not."""
    with RunWriter.create(tmp_path, info()) as writer:
        for step in (1, 2):
            writer.append(**record(step))
    path = tmp_path / "first" / "run.json"
    new = info(**changes)
    if "format" in changes:  # of the records that are there
        path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
        new = info()
    before = _bytes(tmp_path / "first")
    with pytest.raises(FileExistsError, match="a run 'first' with 2 records"):
        RunWriter.create(tmp_path, new)
    said = "cannot be resumed|Received: format 2"
    with pytest.raises(ValueError, match=said):
        RunWriter.resume(tmp_path, new)
    path.unlink()
    with pytest.raises(FileExistsError, match="with 2 records"):
        RunWriter.resume(tmp_path, new)
    del before["run.json"]
    assert _bytes(tmp_path / "first") == before


def test_a_run_of_another_loss_is_not_resumed(tmp_path):
    squared, absolute = [{"loss": "mse"}], [{"loss": "mae"}]
    write(tmp_path, [1], loss=squared)
    with pytest.raises(ValueError, match=r"`loss` expected \[\{'loss': 'mse'"):
        RunWriter.resume(tmp_path, info(loss=absolute))
    # Records of before losses were written can be gone on with.
    assert write(tmp_path, [2], RunWriter.resume, loss=None) == [1, 2]


def _bytes(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_run_without_records_is_taken_over(tmp_path):
    write(tmp_path, [], probe="old")
    # Killed while it wrote its first record.
    (tmp_path / "first" / "records.jsonl").write_bytes(b'{"step": 1, "ep')
    (tmp_path / "first" / "vectors.f32").write_bytes(b"x" * 300)
    assert write(tmp_path, [1], probe="new") == [1]
    assert read_run(tmp_path / "first").info["probe"] == "new"


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match=r"such as 'thesis\.tex'"):
        RunWriter.create(tmp_path, info())


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\\b", None, 3])
def test_a_name_must_be_that_of_a_directory(tmp_path, name):
    with pytest.raises(ValueError, match="`run_name` becomes the name"):
        RunWriter.create(tmp_path, info(name))


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="`log_dir` expected a directory"):
        RunWriter.create(tmp_path / "file", info())


def test_resuming_goes_on_where_the_run_stopped(tmp_path):
    created = write(tmp_path, [1, 2, 3])
    assert created == [1, 2, 3]
    assert write(tmp_path, [4, 5], RunWriter.resume) == [1, 2, 3, 4, 5]
    assert write(tmp_path, [4, 6], RunWriter.resume) == [1, 2, 3, 4, 6]


def test_resuming_a_run_that_is_not_there_starts_it(tmp_path):
    assert write(tmp_path, [7], RunWriter.resume) == [7]


@pytest.mark.parametrize(
    ("lines", "rows"), [(b'{"st', b""), (b"", b"abc"), (b"{}\n", b"x" * 4 * 68)]
)
def test_resuming_removes_what_is_unfinished(tmp_path, lines, rows):
    write(tmp_path, [1, 2])
    for name, data in (("records.jsonl", lines), ("vectors.f32", rows)):
        with open(tmp_path / "first" / name, "ab") as file:
            file.write(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write(tmp_path, [3], RunWriter.resume) == [1, 2, 3]


def test_resuming_does_not_ask_for_the_names_of_variables(tmp_path):
    write(tmp_path, [1])
    renamed = [{**v, "path": f"x_{v['path']}"} for v in VARIABLES]
    assert write(tmp_path, [2], RunWriter.resume, variables=renamed) == [1, 2]
    other = [VARIABLES[0], {"path": "dense/bias", "shape": [1, 3]}]
    with pytest.raises(ValueError, match=r"`variables` expected \[\[4, 3\]"):
        RunWriter.resume(tmp_path, info(variables=other))


@pytest.mark.parametrize("field", ["probe", "architecture", "sketch_size"])
def test_resuming_another_measurement_is_refused(tmp_path, field):
    write(tmp_path, [1])
    with pytest.raises(ValueError, match=f"`{field}` expected"):
        RunWriter.resume(tmp_path, info(**{field: 77}))
    assert len(read_run(tmp_path / "first")) == 1


def test_two_writers_of_one_run(tmp_path):
    pytest.importorskip("fcntl")
    with RunWriter.create(tmp_path, info()) as writer:
        writer.append(**record(1))
        for make in (RunWriter.create, RunWriter.resume):
            with pytest.raises(FileExistsError, match="another process"):
                make(tmp_path, info())
        writer.append(**record(2))
    assert write(tmp_path, [3], RunWriter.resume) == [1, 2, 3]


def test_processes_of_one_directory_do_not_disturb_each_other(tmp_path):
    code = (
        WRITE
        + """
with RunWriter.create(sys.argv[1], info(sys.argv[2])) as writer:
    for step in range(1, 201):
        writer.append(**record(step))
"""
    )
    names = ["one", "two", "one"]
    processes = [start(code, tmp_path, name) for name in names]
    codes = [process.wait(60) for process in processes]
    for process in processes:
        process.stdout.close()
    # Two of a name: one of them writes, the other is refused.
    assert sorted([codes[0], codes[2]]) == [0, 1]
    assert codes[1] == 0
    for name in ("one", "two"):
        steps = read_run(tmp_path / name).scalars["step"]
        assert steps.tolist() == list(range(1, 201))


def test_a_full_disk_takes_the_record_back(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        writer.append(**record(1))
        rows = writer._files._rows
        writer._files._rows = Full(rows, room=100)
        with pytest.raises(OSError, match="No space left"):
            writer.append(**record(2))
        assert os.path.getsize(tmp_path / "first" / "vectors.f32") == 4 * 68
        writer._files._rows = rows
        writer.append(**record(3))
    assert read_run(tmp_path / "first").scalars["step"].tolist() == [1, 3]


class Full:
    """A file on a disk with some bytes of room left."""

    def __init__(self, file, room):
        self.file, self.room = file, room
        self.fileno = file.fileno

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.file.write(data[: self.room])
        self.room -= written
        return written


def test_a_killed_process_loses_at_most_the_last_record(tmp_path):
    moments = random.Random(5)
    for kill in range(20):
        process = start(WRITE_FOREVER, tmp_path, f"run{kill}")
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        path = tmp_path / f"run{kill}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunRecordWarning)
            found = read_run(path)
        steps = found.scalars["step"].tolist()
        assert steps == list(range(1, len(steps) + 1))
        lines = (path / "records.jsonl").read_bytes().count(b"\n")
        assert len(steps) == lines
        for step in steps:
            assert (found.sketches[step - 1] == record(step)["sketch"]).all()
        with RunWriter.resume(tmp_path, info(f"run{kill}")) as writer:
            writer.append(**record(len(steps) + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(read_run(path)) == len(steps) + 1


def test_info_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        RunWriter.create(tmp_path, info())
    assert sorted(os.listdir(tmp_path / "first")) == [
        "records.jsonl",
        "vectors.f32",
    ]
    monkeypatch.undo()
    assert write(tmp_path, [1]) == [1]
    assert json.loads((tmp_path / "first" / "run.json").read_text())
