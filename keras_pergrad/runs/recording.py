"""The recording of a run: what was run, its writer, and its export."""

import contextlib
import dataclasses
import errno
import json
import os
import sqlite3
import time
from typing import Any

import numpy as np

from keras_pergrad.common.names import named_arguments
from keras_pergrad.runs import store
from keras_pergrad.runs.sketch import VARIABLE_SKETCH_SIZE


@dataclasses.dataclass
class RunInfo:
    """The facts about a run that a comparison needs.

    Attributes:
        run: the name of the run and of its directory.
        architecture: fingerprint of the model: layer classes and shapes.
        probe: fingerprint of the probe batch.
        probe_samples: how many samples the probe batch has.
        variables: one dict a trainable variable: its `path` and `shape`.
        sketch_size: numbers in the sketch of the whole gradient.
        variable_sketch_size: numbers in the sketch of one variable.
        settings: setting of a layer → value, where known.
        versions, platform: of the software and the machine, by name.
        machine: a short hash, equal for the runs of one machine.
        devices: the devices TensorFlow sees.
        device: the kind that computes: "CPU", "GPU" or "METAL".
        seed: the seed that the user set, or None.
        optimizer, gradient_mode: their configs, or None.
        loss: one dict a compiled loss, or None.
        precision: the layers' dtype policy by name, or a list of them.
        jit_compile, run_eagerly: how the training step is run.
        op_determinism: whether TensorFlow was told to be deterministic.
        batch_size, steps_per_epoch: of `fit`; None where it is not known.
        tags: the user's labels for the run, for grouping.
        created: seconds since 1970.

    Example:

    >>> from keras_pergrad import runs
    >>> info = runs.RunInfo(
    ...     run="seed0",
    ...     architecture="a1",
    ...     probe="b2",
    ...     probe_samples=128,
    ...     variables=[{"path": "dense/kernel", "shape": [3, 1]}],
    ...     sketch_size=256,
    ...     seed=0,
    ... )
    >>> info.device, info.tags
    ('CPU', {})
    """

    run: str
    architecture: str
    probe: str
    probe_samples: int
    variables: list
    sketch_size: int
    variable_sketch_size: int = VARIABLE_SKETCH_SIZE
    settings: dict = dataclasses.field(default_factory=dict)
    versions: dict = dataclasses.field(default_factory=dict)
    platform: dict = dataclasses.field(default_factory=dict)
    machine: str | None = None
    devices: list = dataclasses.field(default_factory=list)
    device: str = "CPU"
    seed: int | None = None
    optimizer: dict | None = None
    gradient_mode: dict | None = None
    loss: list | None = None
    precision: str | list | None = None
    jit_compile: bool | None = None
    run_eagerly: bool | None = None
    op_determinism: bool | None = None
    batch_size: int | None = None
    steps_per_epoch: int | None = None
    tags: dict = dataclasses.field(default_factory=dict)
    created: float = dataclasses.field(default_factory=time.time)

    def to_json(self):
        """Return the fields as JSON; other types become their `str`."""
        return json.dumps(dataclasses.asdict(self), default=str)


class RunWriter:
    """Appends records to one run.

    Make one by `create` or `resume`, which set `resumes`. The run belongs to
    the writer until `close`: another process may read it, but not write it.

    Example:

    >>> import tempfile, numpy
    >>> from keras_pergrad.runs.recording import RunInfo, RunWriter
    >>> from keras_pergrad.runs import read_run
    >>> variables = [{"path": "dense/kernel", "shape": [4, 1]}]
    >>> info = RunInfo("first", "ab12", "cd34", 8, variables, 64)
    >>> log_dir = tempfile.mkdtemp()
    >>> with RunWriter.create(log_dir, info) as writer:
    ...     writer.append(
    ...         {"step": 1, "epoch": 0, "gradient_norm": 2.0},
    ...         norms=[2.0],
    ...         variances=None,
    ...         variable_sketches=numpy.zeros((1, 16)),
    ...         sketch=numpy.zeros(64),
    ...     )
    >>> read_run(writer.directory).scalars["gradient_norm"]
    array([2.])
    """

    def __init__(self, log_dir, info, resumes=False):
        self.directory = _run_path(log_dir, info.run)
        self._log_dir = os.fspath(log_dir)
        self._shapes = store.vector_shapes(dataclasses.asdict(info))
        self._connection = None
        with self._wrap_errors():
            os.makedirs(self.directory, exist_ok=True)
            names = os.listdir(self.directory)
        if names and store.FILE not in names:
            raise FileExistsError(
                errno.EEXIST,
                f"`run_name` expected a new name, but {self.directory!r} is a "
                f"directory with other files in it, such as {min(names)!r}. "
                "Choose another name",
            )
        path = os.path.join(self.directory, store.FILE)
        try:
            with self._wrap_errors():
                self._connection = store.connect(path, timeout=0)
                self._acquire(info, resumes)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, log_dir, info):
        """Start a run in `log_dir`, a directory that is made if it is missing.

        A run of that name without any record is taken over: a process that was
        killed early leaves one.

        Raises:
            FileExistsError: there is a run of that name, or another process
                is about to write it.
            OSError: `log_dir` cannot be written.
            ValueError: the name cannot be that of a directory.
        """
        return cls(log_dir, info, resumes=False)

    @classmethod
    def resume(cls, log_dir, info):
        """Go on with the run `info.run`, or start it if there is none.

        At the first `append` the records of that step and of later ones are
        removed: they are about to be measured again.

        Raises:
            ValueError: the run was made with another model, loss, probe
                batch or sketch size; the message names the field.
            FileExistsError: another process is writing the run.
            OSError: `log_dir` cannot be written.
        """
        return cls(log_dir, info, resumes=True)

    def append(
        self,
        scalars,
        norms,
        variances,
        variable_sketches,
        sketch,
        reading=None,
    ):
        """Write one record.

        Records of the same or a later step, which a resumed run may have,
        are removed first.

        Args:
            scalars: a dict with `step`, `epoch` and any of the other scalars
                of a record; what is absent or None is undefined.
            norms: of each variable's mean gradient, (V,).
            variances: of each variable's gradients, (V,), or None.
            variable_sketches: (V, R).
            sketch: (S,).
            reading: a `HealthReading`, or None.

        Raises:
            OSError: the record could not be written; the earlier ones stay.
            ValueError: an unknown scalar, a wrong shape, or a closed writer.
        """
        if self._connection is None:
            raise ValueError(
                f"Expected an open run. Received: {self.directory!r}, closed."
            )
        count, width = self._shapes["variables"]
        if variances is None:
            variances = np.full(count, np.nan)
        variables = [
            _float32("norms", norms, (count,))[:, None],
            _float32("variances", variances, (count,))[:, None],
            _float32(
                "variable_sketches", variable_sketches, (count, width - 2)
            ),
        ]
        row = [
            *_ordered_scalars(scalars),
            np.concatenate(variables, 1).tobytes(),
            _float32("sketch", sketch, self._shapes["sketch"]).tobytes(),
            store.pack_reading(reading),
        ]
        placeholders = ", ".join("?" * len(row))
        with self._wrap_errors(), self._transaction() as execute:
            execute("DELETE FROM records WHERE step >= ?", row[:1])
            execute(f"INSERT INTO records VALUES ({placeholders})", row)

    def close(self):
        """Release the run; may be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    @contextlib.contextmanager
    def _wrap_errors(self):
        """Raise errors inside as an `OSError` about `log_dir`."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if isinstance(error, FileExistsError) and not error.filename:
                raise  # refused here
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise FileExistsError(
                    errno.EEXIST,
                    f"The run {self.directory!r} is in use by another "
                    "process. Give each run a `run_name` of its own",
                ) from None
            raise OSError(
                getattr(error, "errno", errno.EIO),
                "`log_dir` expected a directory that can be written. Received: "
                f"log_dir={self._log_dir!r}, with the error: "
                f"{getattr(error, 'strerror', error)}",
            ) from error

    @contextlib.contextmanager
    def _transaction(self):
        """Commit what is done inside, or roll it back."""
        # The transaction that is open in between keeps other writers out, but
        # no reader.
        connection = self._connection
        try:
            if not connection.in_transaction:  # the last one failed
                connection.execute("BEGIN IMMEDIATE")
            yield connection.execute
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _acquire(self, info, resumes):
        """Keep other writers out; start the run, or go on with it."""
        connection = self._connection
        # Takes a third of the time of making and removing the journal.
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA busy_timeout = {1000 * store.TIMEOUT}")
        stored_info = store.read_info(connection, self.directory)
        if stored_info is not None and resumes:
            self._require_same(stored_info, info)
            return
        if stored_info is not None:
            self._require_empty(info)
        with self._transaction() as execute:
            for table in ("info", "records"):
                execute(f"DROP TABLE IF EXISTS {table}")
            for statement in store.SCHEMA:
                execute(statement)
            execute("INSERT INTO info VALUES (?)", [info.to_json()])

    def _require_empty(self, info):
        """Refuse to start a run that has records."""
        count = self._connection.execute("SELECT count(*) FROM records")
        count = count.fetchone()[0]
        if count:
            raise FileExistsError(
                errno.EEXIST,
                f"`run_name` expected a new name, since {self._log_dir!r} has "
                f"a run {info.run!r} with {count} records. Choose another "
                "name, remove the directory, or resume the run: restore its "
                "weights and pass `initial_epoch` to fit(), as "
                "keras.callbacks.BackupAndRestore does",
            )

    def _require_same(self, old, info):
        """Refuse to resume a run that measured something else."""
        new = json.loads(info.to_json())
        for facts in (old, new):
            # Keras numbers layers anew in every process: names may differ.
            facts["variables"] = [v["shape"] for v in facts["variables"]]
        for field in (*store.COMPARABLE_FIELDS, "settings", "variables"):
            if old.get(field) != new[field]:
                raise ValueError(
                    f"The run {info.run!r} in {self._log_dir!r} cannot be "
                    f"resumed: `{field}` expected {old.get(field)!r}, as when "
                    f"it began. Received: {new[field]!r}. Choose another "
                    "`run_name`."
                )


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


def _ordered_scalars(scalars):
    """Return a record's scalars in the order of the table."""
    names = (*store.COUNTERS, *store.SCALARS)
    unknown = sorted(set(scalars) - set(names))
    if unknown:
        raise ValueError(
            f"A record's scalars are {', '.join(names)}. Received: unknown "
            f"{unknown}"
        )
    counters = [int(scalars[name]) for name in store.COUNTERS]
    values = [scalars.get(name) for name in store.SCALARS]
    return [*counters, *(None if v is None else float(v) for v in values)]


#: What a directory cannot be called on one system or another.
_FORBIDDEN = frozenset('<>:"/\\|?*')
_DEVICES = frozenset(
    {"CON", "PRN", "AUX", "NUL"}
    | {f"{port}{k}" for port in ("COM", "LPT") for k in range(1, 10)}
)
_MAX_BYTES = 200


def _run_path(log_dir, run):
    reason = _why_no_name(run)
    if reason is not None:
        raise ValueError(
            "`run_name` becomes the name of a directory on any system. "
            "Expected text with no control character and none of "
            "< > : \" / \\ | ? *, no space or '.' at its start or end, at "
            f"most {_MAX_BYTES} bytes. Received: run_name={run!r}, {reason}. "
            "Leave it out for a new name from the time and the seed."
        )
    return os.path.join(os.fspath(log_dir), run)


def _why_no_name(run):
    """Say why a run cannot have this name, or return None."""
    if not isinstance(run, str):
        return f"which is of type {type(run).__name__}"
    if not run.strip(" ."):
        return "which has no letter"
    wrong = sorted({c for c in run if c in _FORBIDDEN or not c.isprintable()})
    if wrong:
        return f"which has {', '.join(map(repr, wrong))}"
    if run != run.strip() or run.startswith(".") or run.endswith("."):
        return "which begins or ends with a space or '.'"
    if run.split(".")[0].strip().upper() in _DEVICES:
        return "which is the name of a device on Windows"
    size = len(run.encode())
    return f"of {size} bytes" if size > _MAX_BYTES else None


@named_arguments
def export(path: str | os.PathLike[str], *, to: Any) -> None:
    """Write the readings of a recorded run to a tracker.

    The tracker gets what `callbacks.GradientVariance(trackers=[to])` would
    have given it.

    Args:
        path: the run's directory.
        to: a tracker, such as `trackers.TensorBoard("logs")`.

    Raises:
        FileNotFoundError: `path` is not a run.
        ValueError: its records are of another version, or damaged.
        Exception: whatever the tracker raises.

    Example:

    ```python
    for path in kpg.runs.list_runs("runs"):
        page = kpg.trackers.Page(f"{path}.html")
        kpg.runs.export(path, to=page)
    ```
    """
    run = store.read_run(path)
    fields = [field.name for field in dataclasses.fields(RunInfo)]
    facts = {name: run.info[name] for name in fields if name in run.info}
    try:
        to.begin(RunInfo(**facts))
        for reading in run.readings:
            to.write(reading)
    finally:
        to.end()
