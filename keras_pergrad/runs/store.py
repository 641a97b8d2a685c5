"""The records of runs on disk: one SQLite file a run.

`log_dir/<run>/run.sqlite` has the table `info` with one JSON text, and
`records` with a row for each measurement: its scalars; as little-endian
float32 `variables`, with the norm, the variance and the sketch of each
variable's gradient, (V, 2 + R), and `sketch`, of the whole gradient, (S,); and
`reading`, what instruments of gradient health read, as compressed JSON. A row
is a transaction: SQLite rolls back what a killed process or a power cut left
unfinished. Its rollback journal, unlike its write-ahead log, needs no shared
memory, so records may be on a network file system.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_pergrad.common.names import named_arguments, require_one_of

FORMAT = 2
FILE = "run.sqlite"
#: Gradients can be compared where all of these are equal.
COMPARABLE_FIELDS = (
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
_VECTORS = {
    "norms": ("variables", (..., 0)),
    "variances": ("variables", (..., 1)),
    "variable_sketches": ("variables", (..., slice(2, None))),
    "variables": ("variables", ...),
    "sketches": ("sketch", ...),
}
# Scalars first: they are read without the pages that hold the rest.
SCHEMA = (
    "CREATE TABLE info (json TEXT NOT NULL)",
    "CREATE TABLE records (step INTEGER PRIMARY KEY, epoch INTEGER, "
    + ", ".join(f"{name} REAL" for name in SCALARS)
    + ", variables BLOB, sketch BLOB, reading BLOB)",
    f"PRAGMA user_version = {FORMAT}",
)
# Seconds that a reader waits for a record that is being written, and that the
# writer waits for readers.
TIMEOUT = 60


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many values lie between two edges.

    Attributes:
        counts: how many values are in each bin; those that are not finite
            are in none.
        edges: the bins' borders, one more than bins, increasing; a bin has
            its left border, the last one both.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class HealthReading:
    """One measurement of `GradientVariance`.

    Attributes:
        step: the number of updates before it.
        samples: how many were measured, n.
        figures: numbers by the names that they have in the logs; NaN:
            undefined now; absent: not measured.
        by_variable: by instrument a value for each of `variable_names`; NaN:
            undefined.
        variable_names: the paths of `model.trainable_variables`, in order.
        histograms: `"gradient/<path of a variable>"`, of the entries of the
            mean gradient, and `"sample_norms"`, of the norms of the samples'
            gradients.
        layers: by instrument the paths of the layers that it names:
            "dead", "vanishing", "exploding".
        loss: the compiled loss of the measured batch, or None: not known.
    """

    step: int
    samples: int
    figures: Mapping[str, float]
    by_variable: Mapping[str, tuple[float, ...]]
    variable_names: tuple[str, ...]
    histograms: Mapping[str, Histogram] = dataclasses.field(
        default_factory=dict
    )
    layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )
    loss: float | None = None


class RunRecordWarning(UserWarning):
    """A run's records could not be read.

    Example:

    >>> import warnings
    >>> from keras_pergrad import runs
    >>> warnings.simplefilter("error", runs.RunRecordWarning)
    """


class DamagedRun(ValueError):
    """A run's file is not one that SQLite can read."""


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

    def __init__(
        self, path: str, info: dict[str, Any], scalars: dict[str, np.ndarray]
    ):
        self.path: str = path
        self.info: dict[str, Any] = info
        self.scalars: dict[str, np.ndarray] = scalars

    def __len__(self) -> int:
        return len(self.scalars["step"])

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
        require_one_of("name", name, _VECTORS)
        column, selection = _VECTORS[name]
        contents = self._read_column(column, records)
        values = np.frombuffer(b"".join(contents), "<f4")
        shape = vector_shapes(self.info)[column]
        return values.reshape(len(contents), *shape)[selection]

    def _read_column(self, name, records=None):
        """Return a column of some records, in their order."""
        steps = self.scalars["step"]
        steps = steps if records is None else steps[np.asarray(records, int)]
        with _open_records(self.path) as connection:
            # CROSS keeps the order of the steps asked for.
            rows = connection.execute(
                f"SELECT {name} FROM json_each(?) CROSS JOIN records "
                "ON step = value",
                [json.dumps(steps.tolist())],
            ).fetchall()
        if len(rows) < len(steps):
            raise OSError(
                f"The run {self.path!r} was resumed while it was read: read "
                "it again."
            )
        return [row[0] for row in rows]

    @property
    def readings(self) -> list[HealthReading]:
        """The `HealthReading` of each record that has one, a list."""
        return [
            unpack_reading(r)
            for r in self._read_column("reading")
            if r is not None
        ]

    @property
    def norms(self) -> np.ndarray:
        """Norms of each variable's mean gradient, (records, variables)."""
        return self.read("norms")

    @property
    def variances(self) -> np.ndarray:
        """Variances of each variable's per-sample gradients, or NaN."""
        return self.read("variances")

    @property
    def variable_sketches(self) -> np.ndarray:
        """Sketches of each variable's gradient, (records, variables, R)."""
        return self.read("variable_sketches")

    @property
    def sketches(self) -> np.ndarray:
        """Sketches of the whole mean gradient, (records, S)."""
        return self.read("sketches")


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


@named_arguments
def read_run(
    path: str | os.PathLike[str], scalars: Sequence[str] = SCALARS
) -> Run:
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
    with _open_records(path) as connection:
        info = read_info(connection, path)
        if info is None:
            raise DamagedRun(
                f"The file {FILE!r} of {os.fspath(path)!r} is empty: its "
                "process was killed as it began."
            )
        rows = connection.execute(
            f"SELECT {', '.join(names)} FROM records ORDER BY step"
        ).fetchall()
    # NumPy reads None as NaN.
    values = np.array(rows, np.float64).reshape(len(rows), len(names))
    columns = dict(zip(names, values.T))
    columns |= {name: columns[name].astype(np.int64) for name in COUNTERS}
    return Run(os.fspath(path), info, columns)


def connect(path, timeout=TIMEOUT):
    """Open a run's file, without locks where the file system has none."""
    # Not "ro": SQLite must roll back what a killed process left unfinished.
    uri = f"{pathlib.Path(path).absolute().as_uri()}?mode=rwc"
    try:
        return _connect(uri, timeout)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
            raise
        return _connect(f"{uri}&nolock=1", timeout)


def _connect(uri, timeout):
    connection = sqlite3.connect(
        uri, uri=True, timeout=timeout, isolation_level=None
    )
    try:
        connection.execute("SELECT name FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def read_info(connection, directory):
    """Return what was run, a dict; None where nothing is written yet."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, FORMAT):
        raise ValueError(
            f"The run {os.fspath(directory)!r} expected records of format "
            f"{FORMAT}. Received: format {version}. Read them with the "
            "version of keras_pergrad that wrote them; for a new run choose "
            "another `run_name`."
        )
    if version == 0:
        return None
    return json.loads(connection.execute("SELECT json FROM info").fetchone()[0])


@contextlib.contextmanager
def _open_records(directory):
    path = os.path.join(directory, FILE)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"Expected a run's directory, with a file {FILE!r}. Received: "
            f"{os.fspath(directory)!r}, which has none"
        )
    try:
        with contextlib.closing(connect(path)) as connection:
            # A small cache: nothing is read twice.
            connection.execute("PRAGMA cache_size = -64")
            yield connection
    except sqlite3.Error as error:
        raise DamagedRun(
            f"{path!r} is damaged or cannot be read ({error}). A run that is "
            f"being written is copied with its '{FILE}-journal', if there is "
            "one: copy it again."
        ) from error


def pack_reading(reading):
    """Return a reading as compressed JSON; None of none."""
    if reading is None:
        return None
    text = json.dumps(dataclasses.asdict(reading), default=float)
    return zlib.compress(text.encode())


def unpack_reading(content):
    """Return the reading that `pack_reading` packed."""
    fields = json.loads(zlib.decompress(content))
    for name in ("by_variable", "layers"):
        fields[name] = {k: tuple(v) for k, v in fields[name].items()}
    fields["variable_names"] = tuple(fields["variable_names"])
    fields["histograms"] = {
        name: Histogram(tuple(h["counts"]), tuple(h["edges"]))
        for name, h in fields["histograms"].items()
    }
    return HealthReading(**fields)


def vector_shapes(info):
    """Return the shapes of a record's two vectors, by their columns."""
    return {
        "variables": (len(info["variables"]), 2 + info["variable_sketch_size"]),
        "sketch": (info["sketch_size"],),
    }
