"""The writer of a run's records."""

import bisect
import contextlib
import dataclasses
import errno
import itertools
import json
import os

import numpy as np

from keras_pergrad.runs import run_folder
from keras_pergrad.runs.reading import to_line
from keras_pergrad.runs.records import Row, read_info, whole_lines
from keras_pergrad.runs.run_info import COMPARABLE_FIELDS, FORMAT


class Recorder:
    """Appends readings to one run, which belongs to it until `close`.

    `start` and `resume` make one. Other processes may read the run meanwhile.
    What cannot be written raises an `OSError` that names the `log_dir`.
    """

    def __init__(self, directory, *, info, lock):
        self.directory = directory
        self._lock = lock
        self._row = Row(info)
        self._files = contextlib.ExitStack()
        self._lines, self._rows, self._epochs = (
            self._files.enter_context(_open_to_append(directory, name))
            for name in run_folder.RECORDS
        )
        # What a killed process left behind the last line feed.
        epochs = whole_lines(directory, run_folder.EPOCHS)
        self._epochs.truncate(sum(map(len, epochs)))
        lines = whole_lines(directory)
        self._steps = [json.loads(line)["step"] for line in lines]
        self._ends = [0, *itertools.accumulate(map(len, lines))]

    @classmethod
    def start(cls, log_dir, info):
        """Start a run in `log_dir`; a `FileExistsError` if it has records.

        One without any is taken over: a process that was killed early leaves
        it.
        """
        return cls._open(log_dir, info, resumes=False)

    @classmethod
    def resume(cls, log_dir, info):
        """Go on with the run `info.run`, or start it if there is none.

        At the first `append` the records of that step and of later ones are
        removed: they are about to be measured again.
        """
        return cls._open(log_dir, info, resumes=True)

    @classmethod
    def _open(cls, log_dir, info, resumes):
        directory = run_folder.run_path(log_dir, info.run)
        with _errors_of(directory), contextlib.ExitStack() as undo:
            os.makedirs(directory, exist_ok=True)
            _require_own(directory)
            lock = undo.enter_context(run_folder.hold(directory))
            stored = read_info(directory)
            if stored is not None and resumes:
                _require_same(log_dir, stored, info)
            else:
                _begin(directory, info)
                stored = dataclasses.asdict(info)
            # What an earlier `fit` advised is not about this one.
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(directory, run_folder.ADVICE))
            recorder = cls(directory, info=stored, lock=lock)
            undo.pop_all()
            return recorder

    def append(self, reading, *, variable_sketches, sketch):
        """Write a `Reading` with its sketches, (V, R) and (S,).

        Records of the same or a later step, which a resumed run may have,
        are removed first. If it cannot be written, the earlier ones stay.
        """
        if self._lock.closed:
            raise ValueError(
                f"Expected an open run. Received: {self.directory!r}, closed."
            )
        norms = reading.by_variable["norm"]
        row = self._row.pack(
            norms=norms,
            variances=reading.by_variable.get(
                "variance", np.full(len(norms), np.nan)
            ),
            variable_sketches=variable_sketches,
            sketch=sketch,
        )
        line = to_line(reading)
        with _errors_of(self.directory):
            self._cut(bisect.bisect_left(self._steps, reading.step))
            try:
                _write(self._rows, row)
                # A reader that sees the line finds the row.
                _write(self._lines, line)
            except BaseException:
                self._cut(len(self._steps))
                raise
        self._steps.append(reading.step)
        self._ends.append(self._ends[-1] + len(line))

    def add_epoch(self, fields):
        """Write figures of an epoch, a dict with its number, "epoch"."""
        with _errors_of(self.directory):
            _write(self._epochs, json.dumps(fields).encode() + b"\n")

    def advise(self, advice):
        """Write what the `fit` advises: pairs of a name and a text."""
        path = os.path.join(self.directory, run_folder.ADVICE)
        with _errors_of(self.directory), open(path, "w") as file:
            json.dump(advice, file)

    def _cut(self, count):
        """Remove all but the first records, and what is behind the last."""
        del self._steps[count:], self._ends[count + 1 :]
        # Lines first: a row without a line is no record.
        self._lines.truncate(self._ends[count])
        self._rows.truncate(4 * self._row.size * count)

    def close(self):
        """Release the run; may be called again."""
        self._files.close()
        self._lock.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def read_advice(directory):
    """Return what a `fit` advised, pairs of a name and a text, or None."""
    path = os.path.join(directory, run_folder.ADVICE)
    if not os.path.isfile(path):
        return None
    with open(path) as file:
        return json.load(file)


def _open_to_append(directory, name):
    return open(os.path.join(directory, name), "ab", buffering=0)


def _write(file, content):
    """Write all of some bytes, to the disk."""
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]
    os.fsync(file.fileno())


@contextlib.contextmanager
def _errors_of(directory):
    """Raise errors inside as an `OSError` about the `log_dir` of a run."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError) and not error.filename:
            raise  # refused here
        raise OSError(
            error.errno or errno.EIO,
            "`log_dir` expected a directory that can be written. Received: "
            f"log_dir={os.path.dirname(directory)!r}, with the error: "
            f"{error.strerror or error}",
        ) from error


def _require_own(directory):
    """Refuse a directory of something else, or of an older run."""
    run_folder.refuse_older(directory)
    names = set(os.listdir(directory))
    foreign = names - run_folder.OWN
    if foreign and run_folder.INFO not in names:
        raise FileExistsError(
            errno.EEXIST,
            f"`run_name` expected a new name, but {directory!r} is a "
            "directory with other files in it, such as "
            f"{min(foreign)!r}. Choose another name",
        )


def _begin(directory, info):
    """Start a run in a directory without records."""
    count = len(whole_lines(directory))
    if count:
        raise FileExistsError(
            errno.EEXIST,
            "`run_name` expected a new name, since "
            f"{os.path.dirname(directory)!r} has a run {info.run!r} with "
            f"{count} records. Choose another name, remove the directory, or "
            "resume the run: restore its weights and pass `initial_epoch` to "
            "fit(), as keras.callbacks.BackupAndRestore does",
        )
    for name in run_folder.RECORDS:
        with open(os.path.join(directory, name), "wb"):
            pass
    content = json.dumps({"format": FORMAT, **json.loads(info.to_json())})
    new = os.path.join(directory, run_folder.NEW_INFO)
    with open(new, "wb", buffering=0) as file:
        _write(file, content.encode())
    os.replace(new, os.path.join(directory, run_folder.INFO))


def _require_same(log_dir, old, info):
    """Refuse to resume a run that measured something else."""
    new = json.loads(info.to_json())
    # Keras numbers layers anew in every process: names may differ.
    shapes = [[v["shape"] for v in facts["variables"]] for facts in (old, new)]
    compared = {
        **{k: (old.get(k), new[k]) for k in (*COMPARABLE_FIELDS, "settings")},
        "variables": tuple(shapes),
    }
    for field, (expected, received) in compared.items():
        if expected != received:
            raise ValueError(
                f"The run {info.run!r} in {os.fspath(log_dir)!r} cannot be "
                f"resumed: `{field}` expected {expected!r}, as when it began. "
                f"Received: {received!r}. Choose another `run_name`."
            )
