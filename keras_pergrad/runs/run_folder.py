"""The directory of a run: its name, its files, and who may write it.

`log_dir/<run>/` has:

- `run.json`: what was run, written once.
- `readings.jsonl`: a line of JSON for each measurement. A measurement exists
  if its line ends in a line feed: what a killed process or a power cut left
  behind the last one is ignored, and removed by the next writer.
- `arrays.f32`: a row of little-endian float32 for each line: norm, variance
  and sketch of each variable's gradient, (V, 2 + R), then the sketch of the
  whole, (S,). The row is on the disk before its line.
- `epochs.jsonl`: a line of JSON for each epoch in which `DataStall` ran, too.
- `advice.json`: what the `fit` advised at its end, if it did.
- `lock`: empty; whoever writes the run holds it.
"""

import contextlib
import errno
import os

from keras_pergrad.runs.run_info import FORMAT

INFO = "run.json"
#: It is written under this name first, then moved.
NEW_INFO = "run.json.new"
READINGS = "readings.jsonl"
ARRAYS = "arrays.f32"
EPOCHS = "epochs.jsonl"
ADVICE = "advice.json"
LOCK = "lock"
#: What grows while a run is recorded.
RECORDS = READINGS, ARRAYS, EPOCHS
#: All that a run's directory has. A page may be beside them.
OWN = frozenset({INFO, NEW_INFO, *RECORDS, ADVICE, LOCK})
#: The one file of a run up to version 1.0.0rc1.
OLDER = "run.sqlite"

#: What a directory cannot be called on one system or another.
_FORBIDDEN = frozenset('<>:"/\\|?*')
_DEVICES = frozenset(
    {"CON", "PRN", "AUX", "NUL"}
    | {f"{port}{k}" for port in ("COM", "LPT") for k in range(1, 10)}
)
_MAX_BYTES = 200


class DamagedRun(ValueError):
    """A run whose records cannot be read."""


def is_run(directory):
    """Whether a directory holds a run, of this version or an older one."""
    return any(
        os.path.isfile(os.path.join(directory, name)) for name in (INFO, OLDER)
    )


def refuse_older(directory):
    """Refuse a run that was recorded in another format."""
    if os.path.isfile(os.path.join(directory, OLDER)):
        raise ValueError(
            f"The run {os.fspath(directory)!r} expected records of format "
            f"{FORMAT}. Received: {OLDER!r}, as version 1.0.0rc1 of "
            "keras_pergrad wrote it. Read it with that version; for a new run "
            "choose another `run_name`."
        )


def run_path(log_dir, run):
    """Return the directory of a run; refuse a name that none can have."""
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


def hold(directory):
    """Keep other writers out of a run: return the file to close at the end.

    The system lets go of it when the process ends, however it ends. On a file
    system without locks nobody is kept out.
    """
    with contextlib.ExitStack() as undo:
        file = undo.enter_context(open(os.path.join(directory, LOCK), "ab"))
        try:
            _acquire(file)
        except BlockingIOError:
            raise FileExistsError(
                errno.EEXIST,
                f"The run {os.fspath(directory)!r} is in use by another "
                "process. Give each run a `run_name` of its own",
            ) from None
        except OSError:  # there are no locks
            pass
        undo.pop_all()
        return file


def _acquire(file):
    """Lock a file; raise a BlockingIOError where another one has it."""
    try:
        import fcntl
    except ImportError:  # on Windows
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
