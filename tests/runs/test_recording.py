"""Names, resuming, several processes, full disks and killed processes."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_pergrad.runs import read_run
from keras_pergrad.runs.recording import RunWriter
from tests.runs.records import VARIABLES, info, record, write

# Without the package's own __init__, which imports TensorFlow.
WRITE = """
import sys, types
package = types.ModuleType("keras_pergrad")
package.__path__ = ["keras_pergrad"]
sys.modules["keras_pergrad"] = package
from keras_pergrad.runs.recording import RunWriter
from tests.runs.records import info, record
with RunWriter.create(sys.argv[1], info(sys.argv[2])) as writer:
    print("ready", flush=True)
    for step in range(1, int(sys.argv[3])):
        writer.append(**record(step))
        print(step, flush=True)
"""


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def steps_of(run):
    return read_run(run).scalars["step"].tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"variables": [*VARIABLES, {"path": "more/bias", "shape": [3]}]},
        {"variables": VARIABLES[:1]},
        {"variables": [VARIABLES[0], {"path": "dense/bias", "shape": [1, 3]}]},
        {"sketch_size": 64},
        {"probe": "other"},
        {"architecture": "other"},
        {"loss": [{"loss": "mae"}]},
        {"settings": {"0 Dense activation": "relu"}},
    ],
)
def test_a_run_of_something_else_keeps_every_byte(tmp_path, changes):
    write(tmp_path, [1, 2])
    path = tmp_path / "first" / "run.sqlite"
    before = path.read_bytes()
    new = info(**changes)
    for named in (new, info()):
        said = "a run 'first' with 2 records"
        with pytest.raises(FileExistsError, match=said):
            RunWriter.create(tmp_path, named)
    (field,) = changes
    with pytest.raises(ValueError, match=f"cannot be resumed: `{field}` exp"):
        RunWriter.resume(tmp_path, new)
    assert path.read_bytes() == before


def test_a_run_or_file_without_records_is_taken_over(tmp_path):
    """As a process leaves them that is killed as it begins."""
    write(tmp_path, [], probe="old")
    found = read_run(write(tmp_path, [1], probe="new"))
    assert (len(found), found.info["probe"]) == (1, "new")
    for name, make in (("a", RunWriter.create), ("b", RunWriter.resume)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sqlite").touch()
        assert len(read_run(write(tmp_path, [1], make, run=name))) == 1


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match=r"such as 'thesis\.tex'"):
        RunWriter.create(tmp_path, info())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "has no letter") for name in ("", " ", ".", "..", " . ")),
        *((name, "begins or ends") for name in (".hidden", "a.", "a ", " a")),
        *((name, "has ") for name in ("a/b", "a\\b", "/a", "../a", "C:a")),
        *((f"a{c}b", "has ") for c in '<>:"|?*\n\r\t\0\x7f\u2028\udcff'),
        *((name, "a device") for name in ("CON", "nul.txt", "Com1", "aux .b")),
        ("x" * 300, "of 300 bytes"),
        ("é" * 101, "of 202 bytes"),
        (None, "of type NoneType"),
        (3, "of type int"),
    ],
)
def test_a_name_must_be_that_of_a_directory(tmp_path, name, reason):
    with pytest.raises(ValueError, match="`run_name` becomes the name") as said:
        RunWriter.create(tmp_path, info(name))
    assert reason in str(said.value).partition("Received")[2]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        "lr=0.1, β=2",
        "-a",
        "a.b.c",
        "cone",
        "_",
        "日本語",
        "x" * 200,
        "(a) +'b'",
    ],
)
def test_names_that_every_system_takes_are_served(tmp_path, name):
    with RunWriter.create(tmp_path, info(name)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="`log_dir` expected a directory"):
        RunWriter.create(tmp_path / "file", info())


def test_resuming_goes_on_where_the_run_stopped(tmp_path):
    """And starts one that is not there; variables may have other names."""
    renamed = [{**v, "path": f"x_{v['path']}"} for v in VARIABLES]
    for steps, variables, expected in (
        ([1, 2, 3], VARIABLES, [1, 2, 3]),
        ([4, 5], renamed, [1, 2, 3, 4, 5]),
        ([4, 6], VARIABLES, [1, 2, 3, 4, 6]),
    ):
        run = write(tmp_path, steps, RunWriter.resume, variables=variables)
        assert steps_of(run) == expected


def test_two_writers_of_one_run(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        writer.append(**record(1))
        for make in (RunWriter.create, RunWriter.resume):
            with pytest.raises(FileExistsError, match="another process"):
                make(tmp_path, info())
        writer.append(**record(2))
    assert steps_of(write(tmp_path, [3], RunWriter.resume)) == [1, 2, 3]


def test_processes_of_one_directory_do_not_disturb_each_other(tmp_path):
    names = ["one", "two", "one"]
    processes = [start(tmp_path, name, 201) for name in names]
    for process in processes:
        process.communicate(timeout=60)
    # Two of a name: one of them writes, the other is refused.
    first, second, third = (process.returncode for process in processes)
    assert sorted([first, third]) == [0, 1]
    assert second == 0
    for name in ("one", "two"):
        assert steps_of(tmp_path / name) == list(range(1, 201))


def test_a_full_disk_takes_the_record_back(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        writer.append(**record(1))
        full = "PRAGMA max_page_count = 1"  # SQLite keeps what is there
        writer._connection.execute(full)
        step = 1
        with pytest.raises(OSError, match="disk is full"):  # noqa: PT012
            while step < 99:
                step += 1
                writer.append(**record(step))
        assert len(read_run(writer.directory)) == step - 1
        writer._connection.execute("PRAGMA max_page_count = 999")
        writer.append(**record(200))
    assert steps_of(tmp_path / "first") == [*range(1, step), 200]


def test_a_killed_process_loses_at_most_the_last_record(tmp_path):
    moments = random.Random(5)
    for kill in range(20):
        process = start(tmp_path, f"run{kill}", 10**8)
        assert process.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        found = read_run(tmp_path / f"run{kill}")
        steps = found.scalars["step"].tolist()
        assert steps == list(range(1, len(steps) + 1))
        # The one that was being written may be there or not.
        assert len(steps) >= len(said)
        expected = [record(step)["sketch"] for step in steps]
        np.testing.assert_array_equal(
            found.sketches, expected or found.sketches
        )
        more = [len(steps) + 1]
        run = write(tmp_path, more, RunWriter.resume, run=f"run{kill}")
        assert steps_of(run) == steps + more


def test_shapes_and_names_are_checked(tmp_path):
    with RunWriter.create(tmp_path, info()) as writer:
        with pytest.raises(ValueError, match=r"`norms` expected the shape"):
            writer.append(**{**record(1), "norms": [1.0]})
        with pytest.raises(ValueError, match=r"`sketch` expected the shape"):
            writer.append(**{**record(1), "sketch": [1.0]})
        with pytest.raises(ValueError, match=r"unknown \['accuracy'\]"):
            writer.append(**record(1, accuracy=1.0))
    with pytest.raises(ValueError, match="Expected an open run"):
        writer.append(**record(1))
    assert len(read_run(tmp_path / "first")) == 0
