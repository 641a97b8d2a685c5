"""The two growing files of a run, kept in step with each other."""

import contextlib
import errno
import json
import os
import zlib

from keras_pergrad.runs.record import LINES_FILE, ROWS_FILE

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None


class RecordFiles:
    """Rows and lines of one run, open for appending.

    Whole records stand at the start of both files; `keep` cuts off the rest.

    Args:
        directory: of the run.
        row_bytes: the size of one row.

    Attributes:
        count: how many whole records there are, as far as rows of this size
            can tell.
        lines: how many lines were complete when the files were opened, of
            whatever layout; each stands for a record that was complete.

    Raises:
        FileExistsError: another process writes to them.
        OSError: they cannot be opened for writing.
    """

    def __init__(self, directory, row_bytes):
        self._row_bytes = row_bytes
        with contextlib.ExitStack() as stack:
            self._lines, self._rows = (
                stack.enter_context(
                    open(os.path.join(directory, name), "a+b", buffering=0)
                )
                for name in (LINES_FILE, ROWS_FILE)
            )
            _lock(self._lines, directory)
            self._ends, self._steps = self._whole_records()
            stack.pop_all()  # open until close()

    @property
    def count(self):
        return len(self._ends)

    def keep(self, count):
        """Cuts both files off after `count` records."""
        del self._ends[count:], self._steps[count:]
        os.ftruncate(self._lines.fileno(), self._ends[-1] if count else 0)
        os.ftruncate(self._rows.fileno(), count * self._row_bytes)

    def keep_before(self, step):
        """Drops the records of this step and of all later ones."""
        count = len(self._steps)
        while count and self._steps[count - 1] >= step:
            count -= 1
        if count < len(self._steps):
            self.keep(count)

    def add(self, row, line):
        """Writes a row, then its line; takes both back if that fails."""
        try:
            _write(self._rows, row)
            _write(self._lines, line)
        except OSError:
            self.keep(self.count)
            raise
        start = self._ends[-1] if self._ends else 0
        self._ends.append(start + len(line))
        self._steps.append(json.loads(line)["step"])

    def sync(self):
        os.fsync(self._rows.fileno())
        os.fsync(self._lines.fileno())

    def close(self):
        with contextlib.suppress(OSError):  # a disk that is full
            self.sync()
        self._rows.close()
        self._lines.close()

    def _whole_records(self):
        """Where each whole record's line ends, and its step."""
        ends, steps, crcs = [], [], []
        rows = os.fstat(self._rows.fileno()).st_size // self._row_bytes
        self._lines.seek(0)
        position = 0
        lines = self._lines.readall().splitlines(keepends=True)
        self.lines = sum(line.endswith(b"\n") for line in lines)
        for line in lines[:rows]:
            position += len(line)
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if not isinstance(record, dict):
                # In the middle a reader passes over it; at the end it goes.
                record = {}
            ends.append(position)
            steps.append(record.get("step", steps[-1] if steps else 0))
            crcs.append(record.get("crc"))
        while crcs and crcs[-1] != self._crc(len(crcs) - 1):
            del ends[-1], steps[-1], crcs[-1]
        return ends, steps

    def _crc(self, index):
        self._rows.seek(index * self._row_bytes)
        return zlib.crc32(self._rows.read(self._row_bytes) or b"")


def _write(file, data):
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _lock(file, directory):
    """Refuses a second writer; the lock goes with the process."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileExistsError(
            errno.EEXIST,
            f"The run {directory!r} is being written by another process. "
            "Give each run a `run_name` of its own",
        ) from None
    except OSError:
        return  # a file system without locks
