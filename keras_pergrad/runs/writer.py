"""Writes the records of a run, so that a killed process loses at most one."""

import errno
import json
import os
import time

from keras_pergrad.runs.files import RecordFiles
from keras_pergrad.runs.info import read_info, write_info
from keras_pergrad.runs.record import (
    INFO_FILE,
    LINES_FILE,
    ROWS_FILE,
    encode,
)

# A resumed run must measure the same thing as before.
_EQUAL_ON_RESUME = (
    "architecture",
    "loss",
    "probe",
    "probe_samples",
    "sketch_size",
    "variable_sketch_size",
    "variables",
)
_SYNC_SECONDS = 1.0


class RunWriter:
    """Appends records to the files of one run.

    Make one by `create` or `resume`. The run belongs to the writer until
    `close`: another process that wants to write it is refused.

    Example:

    >>> import tempfile, numpy
    >>> from keras_pergrad.runs import RunInfo, RunWriter, read_run
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

    def __init__(self, directory, layout, files):
        self.directory = directory
        self._layout = layout
        self._files = files
        self._synced = time.monotonic()

    @classmethod
    def create(cls, log_dir, info):
        """Starts a run in `log_dir`, a directory that is made if need be.

        A directory of that name without any record, as a process leaves it
        that was killed early, is taken over.

        Raises:
            FileExistsError: there is a run of that name, or another process
                is about to write it.
            OSError: `log_dir` cannot be written.
            ValueError: the name cannot be that of a directory.
        """
        directory = _path(log_dir, info.run)
        _make(log_dir, directory)
        files = _open(directory, info.layout, log_dir)
        try:
            # By its lines: the run there may have rows of another size, of
            # which no checksum fits.
            if files.lines:
                raise FileExistsError(
                    errno.EEXIST,
                    f"`run_name` expected a new name, since {log_dir!r} has "
                    f"a run {info.run!r} with {files.lines} records. Choose "
                    "another name, remove the directory, or resume the run: "
                    "restore its weights and pass `initial_epoch` to fit(), "
                    "as keras.callbacks.BackupAndRestore does",
                )
            files.keep(0)
            write_info(directory, info)
        except OSError as error:
            files.close()
            raise _explained(error, log_dir) from error
        return cls(directory, info.layout, files)

    @classmethod
    def resume(cls, log_dir, info):
        """Goes on with the run `info.run`, or starts it where there is none.

        What a killed process left of an unfinished record is removed, and at
        the first `append` the records of that step and of later ones: they
        are about to be measured again. `run.json` stays as it was.

        Raises:
            ValueError: the run was made with another model, loss, probe
                batch or sketch size; the message names the field.
            FileExistsError: another process is writing the run.
            OSError: `log_dir` cannot be written.
        """
        directory = _path(log_dir, info.run)
        if not os.path.exists(os.path.join(directory, INFO_FILE)):
            return cls.create(log_dir, info)
        old = read_info(directory)
        new = json.loads(info.to_json())
        for known in (old, new):
            # Keras numbers layers anew in every process: names may differ.
            known["variables"] = [v["shape"] for v in known["variables"]]
        for field in _EQUAL_ON_RESUME:
            # Older runs do not know their loss.
            if field == "loss" and None in (old.get(field), new[field]):
                continue
            if old.get(field) != new[field]:
                raise ValueError(
                    f"The run {info.run!r} in {os.fspath(log_dir)!r} cannot "
                    f"be resumed: `{field}` expected {old.get(field)!r}, as "
                    f"when it began. Received: {new[field]!r}. "
                    "Choose another `run_name`."
                )
        layout = info.layout
        files = _open(directory, layout, log_dir)
        try:
            files.keep(files.count)
        except OSError as error:
            files.close()
            raise _explained(error, log_dir) from error
        return cls(directory, layout, files)

    def append(self, scalars, norms, variances, variable_sketches, sketch):
        """Writes one record.

        Records of the same or a later step, which a resumed run may have,
        are dropped first.

        Args:
            scalars: a dict with `step`, `epoch` and any of the other scalars
                of a record; what is absent or None is undefined.
            norms: of each variable's mean gradient, (V,).
            variances: of each variable's gradients, (V,), or None.
            variable_sketches: (V, R).
            sketch: (S,).

        Raises:
            OSError: the record could not be written. What was written of it
                is taken back as far as possible; the earlier records stay.
            ValueError: an unknown scalar, a wrong shape, or a closed writer.
        """
        if self._files is None:
            raise ValueError(
                f"Expected an open run. Received: {self.directory!r}, closed."
            )
        row = self._layout.pack(norms, variances, variable_sketches, sketch)
        line = encode(scalars, row)
        self._files.keep_before(int(scalars["step"]))
        self._files.add(row, line)
        # The page cache outlives a killed process; the disk is for a power
        # cut, after which the checksums tell what is whole.
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self._files.sync()
            self._synced = time.monotonic()

    def close(self):
        """Gives the run free; may be called again."""
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _path(log_dir, run):
    if (
        not isinstance(run, str)
        or run != os.path.basename(run)
        or not run.strip()
        or run.startswith(".")
        or "\\" in run
        or "\0" in run
    ):
        raise ValueError(
            "`run_name` becomes the name of a directory; expected letters, "
            "digits, spaces, '-', '_' and '.' (not at the start). "
            f"Received: run_name={run!r}"
        )
    return os.path.join(os.fspath(log_dir), run)


def _make(log_dir, directory):
    try:
        os.makedirs(directory, exist_ok=True)
        foreign = [
            name
            for name in os.listdir(directory)
            if name not in (LINES_FILE, ROWS_FILE)
            and not name.startswith(INFO_FILE)
        ]
    except OSError as error:
        raise _explained(error, log_dir) from error
    if foreign:
        raise FileExistsError(
            errno.EEXIST,
            f"`run_name` expected a new name, but {directory!r} is a "
            f"directory with other files in it, such as {foreign[0]!r}. "
            "Choose another name",
        )


def _open(directory, layout, log_dir):
    try:
        return RecordFiles(directory, layout.dtype.itemsize)
    except OSError as error:
        raise _explained(error, log_dir) from error


def _explained(error, log_dir):
    if isinstance(error, FileExistsError) and error.filename is None:
        return error  # has its own words
    return OSError(
        error.errno,
        f"`log_dir` expected a directory that can be written. Received: "
        f"log_dir={os.fspath(log_dir)!r}, with the error: {error.strerror}",
    )
