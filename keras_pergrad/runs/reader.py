"""Reads the records of a run, past whatever a killed process left."""

import itertools
import json
import os
import warnings
import zlib

import numpy as np

from keras_pergrad.runs.info import layout_of, read_info
from keras_pergrad.runs.record import (
    COUNTERS,
    INFO_FILE,
    LINES_FILE,
    ROWS_FILE,
    SCALARS,
)

_LINES_AT_ONCE = 4096


class RunRecordWarning(UserWarning):
    """Part of a run's records could not be read."""


class Run:
    """The records of one run.

    The arrays of `norms`, `variances`, `variable_sketches` and `sketches`
    are views of the file on disk: reading a part of them reads that part.

    Attributes:
        path: the run's directory.
        info: the content of `run.json`, a dict.
        scalars: name to array, one entry a record; NaN where undefined.
            `step` and `epoch` are whole numbers.
    """

    def __init__(self, path, info, scalars, rows):
        self.path = path
        self.info = info
        self.scalars = scalars
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def read(self, records):
        """Some records' vectors, in memory.

        A view keeps what was read of it mapped; this does not, so that a
        pass over many runs needs little memory.

        Args:
            records: their indices, rising.

        Returns:
            A structured array with the fields `norms`, `variances`,
            `variable_sketches` and `sketch`.
        """
        records = np.asarray(records, np.int64)
        if not isinstance(self._rows, np.memmap) or not len(records):
            return np.array(self._rows[records])
        out = np.empty(len(records), self._rows.dtype)
        size, into = out.itemsize, out.view(np.uint8).data
        ends = [0, *(np.flatnonzero(np.diff(records) != 1) + 1), len(records)]
        with open(os.path.join(self.path, ROWS_FILE), "rb") as file:
            for start, end in itertools.pairwise(ends):
                file.seek(int(records[start]) * size)
                count = file.readinto(into[start * size : end * size])
                if count < (end - start) * size:
                    raise OSError(
                        f"{file.name!r} has become shorter while it was read."
                    )
        return out

    @property
    def norms(self):
        """Of each variable's mean gradient, (records, variables)."""
        return self._rows["norms"]

    @property
    def variances(self):
        """Of each variable's per-sample gradients, NaN where undefined."""
        return self._rows["variances"]

    @property
    def variable_sketches(self):
        """(records, variables, R)."""
        return self._rows["variable_sketches"]

    @property
    def sketches(self):
        """Of the whole mean gradient, (records, S)."""
        return self._rows["sketch"]


def list_runs(log_dir):
    """The directories of the runs in `log_dir`, sorted by name.

    Args:
        log_dir: the directory that `GradientVariance` was given.

    Returns:
        A list of paths; empty where no run has begun.

    Raises:
        FileNotFoundError: `log_dir` is not a directory.
    """
    if not os.path.isdir(log_dir):
        raise FileNotFoundError(
            "`log_dir` expected a directory with runs in it. Received: "
            f"log_dir={os.fspath(log_dir)!r}, which is not a directory"
        )
    paths = [
        os.path.join(os.fspath(log_dir), name)
        for name in sorted(os.listdir(log_dir))
    ]
    return [p for p in paths if os.path.isfile(os.path.join(p, INFO_FILE))]


def read_run(path, verify=True):
    """Reads a run, which may still be growing.

    A record that was not finished, or is damaged, is left out with a
    `RunRecordWarning`.

    Args:
        path: the run's directory.
        verify: whether to compare every row with its checksum, for which
            all of the vectors are read once. False trusts the disk.

    Returns:
        A `Run`.

    Raises:
        FileNotFoundError: `path` is not a run.
        ValueError: its records are of another version.

    Example:

    ```python
    for path in kpg.runs.list_runs("runs"):
        run = kpg.runs.read_run(path)
        print(run.info["run"], run.scalars["gradient_norm"])
    ```
    """
    path = os.fspath(path)
    info = read_info(path)
    rows, torn_row = _map(os.path.join(path, ROWS_FILE), layout_of(info).dtype)
    lines, torn_line = _lines(os.path.join(path, LINES_FILE))
    problems = []
    # A whole row without its line is no loss: the line is what counts.
    if torn_line or torn_row or len(rows) > len(lines):
        problems.append("the last record is unfinished")
    if len(lines) > len(rows):
        problems.append(f"{len(lines) - len(rows)} lines have no row")
    count = min(len(lines), len(rows))
    columns, crcs, bad = _columns(lines[:count])
    if verify:
        bad |= {i for i in range(count) if crcs[i] != zlib.crc32(rows[i])}
    rows = rows[:count]
    if bad:
        problems.append(f"{len(bad)} records are damaged")
        keep = np.setdiff1d(np.arange(count), sorted(bad))
        columns = {name: column[keep] for name, column in columns.items()}
        rows = rows[keep]
    if problems:
        warnings.warn(
            f"Run {path!r}: {', '.join(problems)}. Read the {len(rows)} "
            "others.",
            RunRecordWarning,
            stacklevel=2,
        )
    return Run(path, info, columns, rows)


def _map(path, dtype):
    """The whole rows of a file, and whether there is part of another."""
    size = os.path.getsize(path) if os.path.exists(path) else 0
    count, rest = divmod(size, dtype.itemsize)
    if not count:
        return np.zeros(0, dtype), bool(rest)
    return np.memmap(path, dtype, "r", shape=(count,)), bool(rest)


def _lines(path):
    """The whole lines of a file, and whether there is part of another."""
    if not os.path.exists(path):
        return [], False
    with open(path, "rb") as file:
        *lines, rest = file.read().split(b"\n")
    return lines, bool(rest)


def _columns(lines):
    """The lines' scalars, their checksums, and which lines are no records."""
    columns = {name: np.zeros(len(lines), np.int64) for name in COUNTERS}
    for name in SCALARS:
        columns[name] = np.full(len(lines), np.nan)
    crcs, bad = [], set()
    for start in range(0, len(lines), _LINES_AT_ONCE):
        part = lines[start : start + _LINES_AT_ONCE]
        records = _parse(part)
        bad |= {start + i for i, r in enumerate(records) if r is None}
        records = [{} if r is None else r for r in records]
        crcs += [r.get("crc") for r in records]
        where = slice(start, start + len(part))
        for name in COUNTERS:
            columns[name][where] = [r.get(name, 0) for r in records]
        for name in SCALARS:
            # NumPy reads None and "nan" as NaN, and "inf" as such.
            found = [r.get(name) for r in records]
            columns[name][where] = np.array(found, np.float64)
    return columns, crcs, bad


def _parse(lines):
    """One dict a line; None where the line is damaged."""
    try:
        # Many lines at once are parsed much faster than one by one.
        records = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        records = []
    if len(records) == len(lines) and all(map(_is_record, records)):
        return records
    return [_parse_one(line) for line in lines]


def _parse_one(line):
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if _is_record(record) else None


def _is_record(record):
    return isinstance(record, dict) and isinstance(record.get("step"), int)
