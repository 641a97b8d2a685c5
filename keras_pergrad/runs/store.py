"""The store of run records: one SQLite file a run.

`log_dir/<run>/run.sqlite` has the table `info` with one JSON text, and for
each measurement a row of `records`, its scalars, and a row of `vectors`, as
little-endian float32: `variables`, with the norm, the variance and the sketch
of each variable's gradient, (V, 2 + R), and `sketch`, of the whole gradient,
(S,). `readings` has what instruments of gradient health read, as compressed
JSON; files of earlier versions lack this table. A record is a transaction:
SQLite rolls back a record that a killed process or a power cut left
unfinished. Its rollback journal, unlike its write-ahead log, needs no shared
memory, so records may be on a network file system.
"""

import contextlib
import errno
import json
import os
import pathlib
import sqlite3

import numpy as np

from keras_pergrad.runs import health_reading

FORMAT = 1
FILE = "run.sqlite"
#: Gradients can be compared where all of these are equal.
EQUAL = (
    "architecture",
    "loss",
    "probe",
    "probe_samples",
    "sketch_size",
    "variable_sketch_size",
)
COUNTERS = ("step", "epoch")
SCALARS = (
    "time",
    "loss",
    "gradient_norm",
    "gradient_variance",
    "gradient_noise_scale",
    "gradient_snr",
    "gradient_repeat_deviation",
    "bitwise_equal_variables",
)
# Name for `Run.read` → the column that holds it, and its place there.
VECTORS = {
    "norms": ("variables", (..., 0)),
    "variances": ("variables", (..., 1)),
    "variable_sketches": ("variables", (..., slice(2, None))),
    "variables": ("variables", ...),
    "sketches": ("sketch", ...),
}
# A file of an earlier version gets it when it is resumed.
READINGS = (
    "CREATE TABLE IF NOT EXISTS readings (step INTEGER PRIMARY KEY, json BLOB)"
)
SCHEMA = (
    "CREATE TABLE info (json TEXT NOT NULL)",
    "CREATE TABLE records (step INTEGER PRIMARY KEY, epoch INTEGER, "
    + ", ".join(f"{name} REAL" for name in SCALARS)
    + ")",
    "CREATE TABLE vectors "
    "(step INTEGER PRIMARY KEY, variables BLOB, sketch BLOB)",
    READINGS,
    f"PRAGMA user_version = {FORMAT}",
)
# Seconds that a reader waits for a record that is being written, and that the
# writer waits for readers.
PATIENCE = 60

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WITHOUT_LOCKS = (
    sqlite3.SQLITE_IOERR_LOCK,
    sqlite3.SQLITE_IOERR_RDLOCK,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
)
_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}


class RunRecordWarning(UserWarning):
    """A run's records could not be read.

    Example:

    >>> import warnings
    >>> from keras_pergrad import runs
    >>> warnings.simplefilter("error", runs.RunRecordWarning)
    """


class DamagedRun(ValueError):
    """A run's file is not one that SQLite can read."""


def connect(path, create=False):
    """Open a run's file, without locks where the file system has none."""
    # Not "ro": SQLite must roll back what a killed process left unfinished.
    mode = "rwc" if create else "rw"
    uri = f"{pathlib.Path(path).absolute().as_uri()}?mode={mode}"
    try:
        return _connect(uri)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode not in _WITHOUT_LOCKS:
            raise
        return _connect(f"{uri}&nolock=1")


def _connect(uri):
    connection = sqlite3.connect(
        uri, uri=True, timeout=PATIENCE, isolation_level=None
    )
    try:
        connection.execute("SELECT name FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def format_of(connection):
    """Return the version of a run's format; 0 where nothing is written yet."""
    return connection.execute("PRAGMA user_version").fetchone()[0]


def info_of(connection):
    """Return what was run, a dict."""
    return json.loads(connection.execute("SELECT json FROM info").fetchone()[0])


@contextlib.contextmanager
def writing(log_dir):
    """Raise errors inside as an `OSError` about `log_dir`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise as_os_error(error, log_dir) from error


def as_os_error(error, log_dir):
    """Return an error in writing to `log_dir` as an `OSError` that says so."""
    if isinstance(error, OSError):
        number = error.errno or errno.EIO
    else:
        number = _ERRNO.get(error.sqlite_errorcode & 0xFF, errno.EIO)
    return OSError(
        number,
        f"`log_dir` expected a directory that can be written. Received: "
        f"log_dir={os.fspath(log_dir)!r}, with the error: "
        f"{os.strerror(number)}",
    )


@contextlib.contextmanager
def _reading(directory):
    path = os.path.join(directory, FILE)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"Expected a run's directory, with a file {FILE!r}. Received: "
            f"{os.fspath(directory)!r}, which has none"
        )
    try:
        with contextlib.closing(connect(path)) as connection:
            # A small cache: nothing is read twice, and many runs may be open.
            connection.execute("PRAGMA cache_size = -64")
            version = format_of(connection)
            if not version:
                raise DamagedRun(
                    f"{path!r} is empty: its process was killed as it began."
                )
            if version != FORMAT:
                raise ValueError(
                    f"The run {os.fspath(directory)!r} expected records of "
                    f"format {FORMAT}. Received: format {version}. Read them "
                    "with the version of keras_pergrad that wrote them."
                )
            yield connection
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF in _DAMAGED:
            raise DamagedRun(
                f"{path!r} is damaged ({error}). A run that is being written "
                f"is copied with its '{FILE}-journal', if there is one: copy "
                "it again."
            ) from error
        raise OSError(errno.EIO, f"cannot be read: {error}", path) from error


class Run:
    """The records of one run.

    Attributes:
        path: the run's directory.
        info: what was run, a dict of the fields of `RunInfo`.
        scalars: name → array, one entry a record; NaN where undefined.
            `step` and `epoch` are whole numbers.

    Example:

    >>> from keras_pergrad import runs
    >>> for path in runs.list_runs("."):
    ...     print(runs.read_run(path).scalars["step"])
    """

    def __init__(self, path, info, scalars):
        self.path = path
        self.info = info
        self.scalars = scalars
        self._connection = None

    def __len__(self):
        return len(self.scalars["step"])

    def read(self, name, records=None):
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
        if name not in VECTORS:
            raise ValueError(
                f"`name` expected one of {', '.join(VECTORS)}. Received: "
                f"name={name!r}"
            )
        column, part = VECTORS[name]
        steps = self.scalars["step"]
        steps = steps if records is None else steps[np.asarray(records, int)]
        with self.opened() as connection:
            # CROSS keeps the order of the steps asked for.
            data = connection.execute(
                f"SELECT {column} FROM json_each(?) CROSS JOIN vectors "
                "ON step = value",
                [json.dumps(steps.tolist())],
            ).fetchall()
        if len(data) < len(steps):
            raise OSError(
                f"The run {self.path!r} was resumed while it was read: read "
                "it again."
            )
        values = np.frombuffer(b"".join([row[0] for row in data]), "<f4")
        shape = shapes(self.info)[column]
        return values.reshape(len(steps), *shape)[part]

    @contextlib.contextmanager
    def opened(self):
        """Keep the file open over several readings."""
        if self._connection is not None:
            yield self._connection
            return
        with _reading(self.path) as self._connection:
            try:
                yield self._connection
            finally:
                self._connection = None

    @property
    def readings(self):
        """One `results.HealthReading` a record, a list.

        Where none was recorded, as by earlier versions, it has the scalars
        and the norm and the variance of each variable's gradient.
        """
        with self.opened() as connection:
            known = connection.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'readings'"
            )
            if known.fetchone():
                known = connection.execute("SELECT step, json FROM readings")
            return health_reading.of_run(self, dict(known))

    @property
    def norms(self):
        """Norms of each variable's mean gradient, (records, variables)."""
        return self.read("norms")

    @property
    def variances(self):
        """Variances of each variable's per-sample gradients, or NaN."""
        return self.read("variances")

    @property
    def variable_sketches(self):
        """Sketches of each variable's gradient, (records, variables, R)."""
        return self.read("variable_sketches")

    @property
    def sketches(self):
        """Sketches of the whole mean gradient, (records, S)."""
        return self.read("sketches")


def shapes(info):
    """Return the shapes of a record's two vectors, by their names."""
    return {
        "variables": (len(info["variables"]), 2 + info["variable_sketch_size"]),
        "sketch": (info["sketch_size"],),
    }


def list_runs(log_dir):
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
    if not os.path.isdir(log_dir):
        raise FileNotFoundError(
            "`log_dir` expected a directory with runs in it. Received: "
            f"log_dir={os.fspath(log_dir)!r}, which is not a directory"
        )
    paths = [
        os.path.join(os.fspath(log_dir), name)
        for name in sorted(os.listdir(log_dir))
    ]
    return [p for p in paths if os.path.isfile(os.path.join(p, FILE))]


def read_run(path, scalars=SCALARS):
    """Read a run, which may still be growing.

    Args:
        path: the run's directory.
        scalars: which scalars to read besides `step` and `epoch`; all by
            default.

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
    names = (*COUNTERS, *scalars)
    unknown = sorted(set(scalars) - set(SCALARS))
    if unknown:
        raise ValueError(
            f"`scalars` expected some of {', '.join(SCALARS)}. Received: "
            f"{', '.join(unknown)}"
        )
    with _reading(path) as connection:
        info = info_of(connection)
        rows = connection.execute(
            f"SELECT {', '.join(names)} FROM records ORDER BY step"
        ).fetchall()
    # NumPy reads None as NaN.
    values = np.array(rows, np.float64).reshape(len(rows), len(names))
    columns = dict(zip(names, values.T))
    columns |= {name: columns[name].astype(np.int64) for name in COUNTERS}
    return Run(os.fspath(path), info, columns)
