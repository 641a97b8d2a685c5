"""Names, resuming, several processes, full disks and killed processes."""

import dataclasses
import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_pergrad.runs import read_run
from keras_pergrad.runs.recorder import Recorder, read_advice
from tests.runs.records import VARIABLES, info, reading, sketches, write

# Without the package's own __init__, which imports TensorFlow.
WRITE = """
import sys, types
package = types.ModuleType("keras_pergrad")
package.__path__ = ["keras_pergrad"]
sys.modules["keras_pergrad"] = package
from keras_pergrad.runs.recorder import Recorder
from tests.runs.records import info, reading, sketches
with Recorder.start(sys.argv[1], info(sys.argv[2])) as recorder:
    print("ready", flush=True)
    for step in range(1, int(sys.argv[3])):
        recorder.append(reading(step), **sketches(step))
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
    run = tmp_path / "first"
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    new = info(**changes)
    for named in (new, info()):
        said = "a run 'first' with 2 records"
        with pytest.raises(FileExistsError, match=said):
            Recorder.start(tmp_path, named)
    (field,) = changes
    with pytest.raises(ValueError, match=f"cannot be resumed: `{field}` exp"):
        Recorder.resume(tmp_path, new)
    assert before == {path.name: path.read_bytes() for path in run.iterdir()}


def test_a_run_or_file_without_records_is_taken_over(tmp_path):
    """As a process leaves them that is killed as it begins."""
    write(tmp_path, [], probe="old")
    found = read_run(write(tmp_path, [1], probe="new"))
    assert (len(found), found.info["probe"]) == (1, "new")
    for name, make in (("a", Recorder.start), ("b", Recorder.resume)):
        (tmp_path / name).mkdir()
        for left in ("lock", "run.json.new", "arrays.f32"):
            (tmp_path / name / left).write_text("left")
        assert len(read_run(write(tmp_path, [1], make, run=name))) == 1


def test_a_directory_of_something_else_is_refused(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match=r"such as 'thesis\.tex'"):
        Recorder.start(tmp_path, info())


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
        Recorder.start(tmp_path, info(name))
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
    with Recorder.start(tmp_path, info(name)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="`log_dir` expected a directory"):
        Recorder.start(tmp_path / "file", info())


def test_resuming_goes_on_where_the_run_stopped(tmp_path):
    """And starts one that is not there; variables may have other names."""
    renamed = [{**v, "path": f"x_{v['path']}"} for v in VARIABLES]
    for steps, variables, expected in (
        ([1, 2, 3], VARIABLES, [1, 2, 3]),
        ([4, 5], renamed, [1, 2, 3, 4, 5]),
        ([4, 6], VARIABLES, [1, 2, 3, 4, 6]),
    ):
        run = write(tmp_path, steps, Recorder.resume, variables=variables)
        assert steps_of(run) == expected


def test_two_writers_of_one_run(tmp_path):
    with Recorder.start(tmp_path, info()) as recorder:
        recorder.append(reading(1), **sketches(1))
        for make in (Recorder.start, Recorder.resume):
            with pytest.raises(FileExistsError, match="another process"):
                make(tmp_path, info())
        recorder.append(reading(2), **sketches(2))
    assert steps_of(write(tmp_path, [3], Recorder.resume)) == [1, 2, 3]


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
    with Recorder.start(tmp_path, info()) as recorder:
        recorder.append(reading(1), **sketches(1))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        kept = [1]
        for size in (700, 1100, 1500):  # bytes that a file may have at most
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            try:
                with pytest.raises(OSError, match="too large"):  # noqa: PT012
                    for step in range(len(kept) + 1, 99):
                        recorder.append(reading(step), **sketches(step))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            kept = steps_of(tmp_path / "first")
            assert kept == list(range(1, len(kept) + 1))
        recorder.append(reading(200), **sketches(200))
    assert steps_of(tmp_path / "first") == [*kept, 200]


def test_advice_is_of_the_last_fit(tmp_path):
    with Recorder.start(tmp_path, info()) as recorder:
        assert read_advice(recorder.directory) is None
        recorder.advise([("layer_dead", "It does not learn.")])
    written = [["layer_dead", "It does not learn."]]
    assert read_advice(tmp_path / "first") == written
    write(tmp_path, [1], Recorder.resume)
    assert read_advice(tmp_path / "first") is None


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
        for step, sketch in zip(steps, found.read("sketches")):
            np.testing.assert_array_equal(sketch, sketches(step)["sketch"])
        more = [len(steps) + 1]
        run = write(tmp_path, more, Recorder.resume, run=f"run{kill}")
        assert steps_of(run) == steps + more


def test_shapes_are_checked(tmp_path):
    one = reading(1)
    wrong = dataclasses.replace(one, by_variable={"norm": np.ones(1)})
    with Recorder.start(tmp_path, info()) as recorder:
        with pytest.raises(ValueError, match=r"`norms` expected the shape"):
            recorder.append(wrong, **sketches(1))
        with pytest.raises(ValueError, match=r"`sketch` expected the shape"):
            recorder.append(one, **{**sketches(1), "sketch": [1.0]})
    with pytest.raises(ValueError, match="Expected an open run"):
        recorder.append(one, **sketches(1))
    assert len(read_run(tmp_path / "first")) == 0
