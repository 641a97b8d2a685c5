"""The records of runs, as they are read."""

import dataclasses
import json
import os
from typing import Any

import numpy as np

from keras_pergrad.common.arguments import (
    named_arguments,
    path_text,
    require_one_of,
)
from keras_pergrad.runs import figures, run_folder
from keras_pergrad.runs.reading import Reading, from_fields
from keras_pergrad.runs.run_folder import DamagedRun
from keras_pergrad.runs.run_info import FORMAT, RunInfo

_COUNTERS = "step", "epoch"
_FACTS = "time", "loss"
#: What a tracker has at least.
TRACKER_METHODS = "begin", "write", "end"


class RunRecordWarning(UserWarning):
    """A run's records could not be read.

    Example:

    >>> import warnings
    >>> from keras_pergrad import runs
    >>> warnings.simplefilter("error", runs.RunRecordWarning)
    """


class Row:
    """The places in a row of a run's array, in numbers of float32.

    Attributes:
        size: how many there are.
    """

    def __init__(self, info):
        self._variables = (
            len(info["variables"]),
            2 + info["variable_sketch_size"],
        )
        self._sketch = info["sketch_size"]
        self.size: int = int(np.prod(self._variables)) + self._sketch

    def pack(self, *, norms, variances, variable_sketches, sketch):
        """Return the bytes of a row; refuse what has another shape."""
        count, width = self._variables
        columns = [
            _float32("norms", norms, (count,))[:, None],
            _float32("variances", variances, (count,))[:, None],
            _float32(
                "variable_sketches", variable_sketches, (count, width - 2)
            ),
        ]
        sketch = _float32("sketch", sketch, (self._sketch,))
        return np.concatenate(columns, 1).tobytes() + sketch.tobytes()

    def part(self, name):
        """Return where a vector is, its shape, and what to take of it."""
        start = self.size - self._sketch
        if name == "sketches":
            return start, (self._sketch,), ...
        chosen = {
            "variables": ...,
            "norms": (..., 0),
            "variances": (..., 1),
            "variable_sketches": (..., slice(2, None)),
        }
        require_one_of("name", name, ("sketches", *chosen))
        return 0, self._variables, chosen[name]


def _float32(name, value, shape):
    """Return a vector of a record as an array."""
    if np.shape(value) != shape:
        raise ValueError(
            f"`{name}` expected the shape {shape}, that of this run. "
            f"Received: shape {np.shape(value)}"
        )
    # A float64 beyond float32 becomes infinite, as it should.
    with np.errstate(over="ignore"):
        return np.asarray(value, "<f4")


class Run:
    """The records of one run, which `read_run` reads.

    Args:
        lines: the lines of `readings.jsonl`.

    Attributes:
        path: the run's directory.
        info: what was run, a dict of the fields of `RunInfo`.
        scalars: name → array, one entry a record: "step" and "epoch", whole
            numbers; "time", "loss" and the figures by their names in the logs,
            NaN where undefined.

    Example:

    >>> from keras_pergrad import runs
    >>> for path in runs.list_runs("."):
    ...     print(runs.read_run(path).scalars["step"])
    """

    def __init__(self, path: str, info: dict[str, Any], lines: list[bytes]):
        self.path: str = path
        self.info: dict[str, Any] = info
        self._row = Row(info)
        # The lines themselves would take more memory than many runs have.
        self._size = sum(map(len, lines))
        self._last_line = lines[-1] if lines else b""
        self.scalars: dict[str, np.ndarray] = _columns(lines)

    def __len__(self) -> int:
        return len(self.scalars["step"])

    @named_arguments
    def read(self, name: str, records: Any = None) -> np.ndarray:
        """Read the vectors of some records.

        Args:
            name: `"norms"`, `"variances"`, `"variable_sketches"` or
                `"sketches"`; `"variables"` are the first three side by side.
            records: indices of records; None for all.

        Returns:
            A float32 array of shape (records, *shape of one).

        Raises:
            OSError: after the run was read, it was resumed at an earlier step,
                which removed records.
            ValueError: the file is damaged.
        """
        start, shape, chosen = self._row.part(name)
        indices = range(len(self)) if records is None else np.asarray(records)
        size, contents = 4 * int(np.prod(shape)), []
        with _open(self.path, run_folder.ARRAYS) as file:
            for k in indices:
                file.seek(4 * (int(k) * self._row.size + start))
                contents.append(file.read(size))
        self._require_unchanged()
        if any(len(content) < size for content in contents):
            raise _damaged(self.path, run_folder.ARRAYS, "rows are missing")
        values = np.frombuffer(b"".join(contents), "<f4")
        return values.reshape(len(contents), *shape)[chosen]

    def _require_unchanged(self):
        """Refuse to go on where the records that were read are others now."""
        with _open(self.path, run_folder.READINGS) as file:
            file.seek(self._size - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                raise OSError(
                    f"The run {self.path!r} was resumed while it was read: "
                    "read it again."
                )

    @property
    def readings(self) -> list[Reading]:
        """The `Reading` of each record, a list."""
        names = [v["path"] for v in self.info["variables"]]
        lines = whole_lines(self.path)[: len(self)]
        vectors = zip(self.read("norms"), self.read("variances"))
        return [
            from_fields(
                json.loads(line),
                names,
                arrays={"norm": norms, "variance": variances},
            )
            for line, (norms, variances) in zip(lines, vectors)
        ]


def _columns(lines):
    """Return the scalars of records as arrays by name."""
    names = (*_COUNTERS, *_FACTS, *(figure.name for figure in figures.BASIC))
    columns = {name: np.full(len(lines), np.nan) for name in names}
    for k, line in enumerate(lines):
        fields = json.loads(line)
        for name in (*_COUNTERS, *_FACTS):
            value = fields[name]
            columns[name][k] = np.nan if value is None else value
        for name, value in fields["figures"].items():
            if name not in columns:
                columns[name] = np.full(len(lines), np.nan)
            columns[name][k] = value
    whole = {name: columns[name].astype(np.int64) for name in _COUNTERS}
    return {**columns, **whole}


@named_arguments
def list_runs(log_dir: str | os.PathLike[str]) -> list[str]:
    """List the directories of the runs in `log_dir`, sorted by name.

    Args:
        log_dir: the directory that `GradientVariance` was given.

    Returns:
        A list of paths; empty where no run has begun.

    Raises:
        FileNotFoundError: `log_dir` is not a directory.

    Example:

    >>> from keras_pergrad import runs
    >>> runs.list_runs(".")
    []
    """
    log_dir = path_text("log_dir", log_dir, "a directory with runs in it")
    if not os.path.isdir(log_dir):
        raise FileNotFoundError(
            "`log_dir` expected a directory with runs in it. Received: "
            f"log_dir={log_dir!r}, which is not a directory"
        )
    paths = [
        os.path.join(log_dir, name) for name in sorted(os.listdir(log_dir))
    ]
    return [path for path in paths if run_folder.is_run(path)]


@named_arguments
def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a run, which may still be growing.

    Args:
        path: the run's directory.

    Returns:
        A `Run`. Its vectors are read when they are asked for.

    Raises:
        FileNotFoundError: `path` is not a run.
        ValueError: its records are of another version, or damaged.

    Example:

    ```python
    for path in kpg.runs.list_runs("runs"):
        run = kpg.runs.read_run(path)
        print(run.info["run"], run.scalars["gradient_norm"])
    ```
    """
    path = path_text("path", path, "the directory of a run")
    run_folder.refuse_older(path)
    info = read_info(path)
    if info is None:
        raise FileNotFoundError(
            f"Expected a run's directory, with a file {run_folder.INFO!r}. "
            f"Received: {path!r}, which has none"
        )
    lines = whole_lines(path)
    try:
        return Run(path, info, lines)
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, run_folder.READINGS, error) from error


def read_info(path):
    """Return what was run, a dict; None where nothing is written yet."""
    if not os.path.isfile(os.path.join(path, run_folder.INFO)):
        return None
    with _open(path, run_folder.INFO) as file:
        content = file.read()
    try:
        info = json.loads(content)
        version = info.pop("format")
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, run_folder.INFO, error) from error
    if version != FORMAT:
        raise ValueError(
            f"The run {path!r} expected records of format {FORMAT}. Received: "
            f"format {version}. Read them with the version of keras_pergrad "
            "that wrote them; for a new run choose another `run_name`."
        )
    return info


def read_epochs(path):
    """Return what is recorded of the epochs of a run, a list of dicts.

    A resumed run has an epoch as it was last.
    """
    try:
        epochs = map(json.loads, whole_lines(path, run_folder.EPOCHS))
        return list({fields["epoch"]: fields for fields in epochs}.values())
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, run_folder.EPOCHS, error) from error


def whole_lines(path, name=run_folder.READINGS):
    """Return the lines of a run's records that are written to their end."""
    if not os.path.isfile(os.path.join(path, name)):
        return []
    with _open(path, name) as file:
        lines = file.read().splitlines(keepends=True)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _open(path, name):
    try:
        return open(os.path.join(path, name), "rb")
    except FileNotFoundError as error:
        raise _damaged(path, name, "it is missing") from error


def _damaged(path, name, reason):
    return DamagedRun(
        f"{os.path.join(path, name)!r} is damaged or cannot be read "
        f"({reason}). Copy the run's directory again, if it is a copy."
    )


@named_arguments
def export(path: str | os.PathLike[str], *, to: Any) -> None:
    """Write the readings of a recorded run to a tracker.

    The tracker gets what `callbacks.GradientVariance(trackers=[to])` would
    have given it.

    Args:
        path: the run's directory.
        to: a tracker, such as `trackers.TensorBoard("logs")`.

    Raises:
        TypeError: `to` is no tracker.
        FileNotFoundError: `path` is not a run.
        ValueError: its records are of another version, or damaged.
        Exception: whatever the tracker raises.

    Example:

    ```python
    for path in kpg.runs.list_runs("runs"):
        board = kpg.trackers.TensorBoard(f"boards/{path}")
        kpg.runs.export(path, to=board)
    ```
    """
    if not is_tracker(to):
        raise TypeError(
            "`to` expected a tracker, such as kpg.trackers.TensorBoard('logs')"
            f". Received: to={to!r}"
        )
    run = read_run(path)
    names = [field.name for field in dataclasses.fields(RunInfo)]
    try:
        to.begin(RunInfo(**{k: run.info[k] for k in names if k in run.info}))
        for reading in run.readings:
            to.write(reading)
    finally:
        to.end()


def is_tracker(thing):
    """Whether it is an object with what trackers have."""
    return not isinstance(thing, type) and all(
        callable(getattr(thing, name, None)) for name in TRACKER_METHODS
    )
