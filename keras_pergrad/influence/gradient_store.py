"""Rows of numbers on disk, built in chunks by any number of processes.

A directory with `gradients.npy` (n, size) in half precision, each row over its
largest entry, which is in `scales.npy`; `chunks.bin`, a byte for each chunk, 1
once its rows are on disk; and `about.json`. Each process writes its own
chunks, at their places, so that no order and no lock matters.
"""

import json
import os
import pathlib
import tempfile

import numpy as np

_READ = 2**23
_FORMAT = 1


class GradientStore:
    """A store at a path, made if it is not there.

    Args:
        path: of the directory.
        about: what it must be about, a dict with "samples", "size" and
            "rows", those of a chunk; None: it must be there.

    Raises:
        ValueError: a store of something else is there, or none.
    """

    def __init__(self, path, about=None):
        self.path = pathlib.Path(path)
        if about is not None:
            self._make({"format": _FORMAT, **about})
        self.about = self._read_about()
        self.require(about or {})
        self.samples, self.size = self.about["samples"], self.about["size"]
        self.chunks = -(-self.samples // self.about["rows"])

    def missing(self, shard=(0, 1)):
        """List the chunks of a part of the store that are to be built."""
        number, of = shard
        begin, stop = (self.chunks * k // of for k in (number, number + 1))
        done = np.fromfile(self.path / "chunks.bin", np.uint8)
        return [k for k in range(begin, stop) if not done[k]]

    def write(self, chunk, rows):
        """Write the rows of a chunk, and note it once they are on disk."""
        first = chunk * self.about["rows"]
        expected = min(self.about["rows"], self.samples - first)
        if rows.shape != (expected, self.size):
            raise ValueError(
                f"Batch {chunk} expected {expected} samples, since all batches "
                f"of a store but the last have {self.about['rows']}. Received: "
                f"{len(rows)}. Give batches of one size, or arrays."
            )
        scales = np.abs(rows).max(1, initial=0).astype("float32")
        halves = rows / np.where(scales > 0, scales, 1)[:, None]
        self._put("gradients.npy", first, halves.astype("float16"))
        self._put("scales.npy", first, scales)
        with open(self.path / "chunks.bin", "r+b") as file:
            file.seek(chunk)
            file.write(b"\1")

    def blocks_as_stored(self, number=0, of=1):
        """Yield (first row, rows, scales), in half precision, as on disk.

        Of every `of` blocks the one with this number; rows stand in one buffer
        until the next ones are asked for.
        """
        scales = np.load(self.path / "scales.npy", mmap_mode="r")
        count = self.rows_at_once
        buffer = _aligned(2 * count * self.size)
        with open(self.path / "gradients.npy", "rb", buffering=0) as file:
            _skip_header(file)
            begin = file.tell()
            for first in range(number * count, self.samples, of * count):
                n = min(count, self.samples - first)
                file.seek(begin + 2 * first * self.size)
                part = buffer[: 2 * n * self.size]
                _fill(file, part.data)
                _read_on(file, begin + 2 * (first + of * count) * self.size)
                rows = part.view(np.float16).reshape(n, self.size)
                yield first, rows, scales[first : first + n]

    @property
    def rows_at_once(self):
        """How many rows are read at once."""
        return max(1, _READ // (2 * self.size))

    def kept(self, name, make):
        """Return an array that is made once and kept beside the rows."""
        path = self.path / name
        if not path.exists():
            _in_one_move(path, lambda file: np.save(file, make()))
        return np.load(path)

    def _make(self, about):
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "about.json").exists():
            return
        n, size = about["samples"], about["size"]
        self._reserve("gradients.npy", np.float16, (n, size))
        self._reserve("scales.npy", np.float32, (n,))
        with open(self.path / "chunks.bin", "ab") as file:
            file.truncate(-(-n // about["rows"]))
        text = json.dumps(about, indent=1, sort_keys=True).encode()
        _in_one_move(self.path / "about.json", lambda file: file.write(text))

    def _reserve(self, name, dtype, shape):
        """Make a file of its full size; what is in it stays."""
        with open(self.path / name, "ab"):
            pass
        with open(self.path / name, "r+b") as file:
            header = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": shape,
            }
            np.lib.format.write_array_header_1_0(file, header)
            number = int(np.prod(shape)) * np.dtype(dtype).itemsize
            file.truncate(file.tell() + number)

    def _put(self, name, first, rows):
        with open(self.path / name, "r+b") as file:
            _skip_header(file)
            file.seek(first * rows[:1].nbytes, os.SEEK_CUR)
            file.write(np.ascontiguousarray(rows).data)
            file.flush()
            os.fsync(file.fileno())

    def _read_about(self):
        try:
            return json.loads((self.path / "about.json").read_text())
        except FileNotFoundError:
            raise ValueError(
                f"Expected a store of Influence.save at {str(self.path)!r}. "
                "Received: a path without one"
            ) from None

    def require_complete(self):
        """Refuse a store that lacks chunks."""
        missing = self.missing()
        if missing:
            raise ValueError(
                f"The store at {str(self.path)!r} expected to be complete. "
                f"Received: {len(missing)} of {self.chunks} chunks are "
                f"missing, the first is {missing[0]}. Call Influence.save "
                "again, for each shard."
            )

    def require(self, expected):
        """Refuse a store that is of something else."""
        for name, value in {"format": _FORMAT, **expected}.items():
            if self.about.get(name) != value:
                raise ValueError(
                    f"The store at {str(self.path)!r} is of something else: "
                    f"{name} is {self.about.get(name)!r} there. Expected: "
                    f"{value!r}. Give another path, or the model and settings "
                    "that it was begun with."
                )


def _aligned(size):
    """Return bytes that TensorFlow takes as they are."""
    room = np.empty(size + 64, np.uint8)
    begin = -room.ctypes.data % 64
    return room[begin : begin + size]


def _fill(file, place):
    while place:
        read = file.readinto(place)
        if not read:
            raise ValueError(
                f"{file.name!r} expected {len(place)} more bytes. Received: "
                "its end. Build the store again in an empty directory."
            )
        place = place[read:]


def _read_on(file, place):
    """Have the system read what stands there meanwhile, if it takes hints."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), place, _READ, os.POSIX_FADV_WILLNEED)


def _skip_header(file):
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)


def _in_one_move(path, write):
    """Write a file so that nobody sees half of it."""
    handle, unfinished = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
