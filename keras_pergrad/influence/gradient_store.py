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

#: Rows are read in blocks of a multiple of so many: TensorFlow takes memory
#: that begins at a multiple of 64 bytes without a copy.
_ALIGNED_ROWS = 32
_READ_BYTES = 2**23
_FORMAT = 1


class GradientStore:
    """A store at a path, made if it is not there.

    `metadata` has "samples", "size", "rows" (of a chunk) and what else must
    agree; None: the store must be there.
    """

    def __init__(self, path, metadata=None):
        self.path = pathlib.Path(path)
        if metadata is not None and not (self.path / "about.json").exists():
            self._make({"format": _FORMAT, **metadata})
        self.metadata = self._read_metadata()
        self.require(metadata or {})
        self.samples = self.metadata["samples"]
        self.size = self.metadata["size"]
        self.chunks = -(-self.samples // self.metadata["rows"])

    def missing(self, shard=(0, 1)):
        """List the chunks of a shard of the store that are to be built."""
        index, count = shard
        begin, stop = (self.chunks * k // count for k in (index, index + 1))
        done = np.fromfile(self.path / "chunks.bin", np.uint8)
        return [k for k in range(begin, stop) if not done[k]]

    def write(self, chunk, rows):
        """Write the rows of a chunk, and note it once they are on disk."""
        first_row = chunk * self.metadata["rows"]
        expected = min(self.metadata["rows"], self.samples - first_row)
        if rows.shape != (expected, self.size):
            raise ValueError(
                f"Batch {chunk} expected {expected} samples, since all batches "
                "of a store but the last have "
                f"{self.metadata['rows']}. Received: {len(rows)}. Give "
                "batches of one size, or arrays."
            )
        scales = np.abs(rows).max(1, initial=0).astype("float32")
        normalized_rows = rows / np.where(scales > 0, scales, 1)[:, None]
        for name, values in (
            ("gradients.npy", normalized_rows.astype("float16")),
            ("scales.npy", scales),
        ):
            begin = self._open(name).offset + first_row * values[:1].nbytes
            _write_at(self.path / name, begin, values.tobytes())
        # Only after the rows are synced to disk: a killed process must not
        # leave a chunk that is marked but not written.
        _write_at(self.path / "chunks.bin", chunk, b"\1")

    def stored_blocks(self):
        """Yield (first row, rows, scales), in half precision, as on disk."""
        rows, scales = self._open("gradients.npy"), self._open("scales.npy")
        count = self.rows_per_block
        for first in range(0, self.samples, count):
            block = slice(first, first + count)
            yield first, rows[block], scales[block]

    @property
    def rows_per_block(self):
        """How many rows are read at once."""
        row_bytes = 2 * self.size * _ALIGNED_ROWS
        return _ALIGNED_ROWS * max(1, _READ_BYTES // row_bytes)

    def _make(self, metadata):
        """Make an empty store, and move it to its place as a whole."""
        n, size = metadata["samples"], metadata["size"]
        parent = self.path.parent
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            new = pathlib.Path(folder) / "store"
            new.mkdir()
            make = np.lib.format.open_memmap
            make(new / "gradients.npy", "w+", np.float16, shape=(n, size))
            make(new / "scales.npy", "w+", np.float32, shape=(n,))
            chunks = -(-n // metadata["rows"])
            (new / "chunks.bin").write_bytes(bytes(chunks))
            text = json.dumps(metadata, indent=1, sort_keys=True)
            (new / "about.json").write_text(text)
            try:
                os.rename(new, self.path)
            except OSError:  # There is one, of a process that was faster?
                if not (self.path / "about.json").exists():
                    raise

    def _open(self, name):
        """Return an array of the store, of which what is read is loaded.

        It may be written to, as TensorFlow wants of memory, and is not saved.
        """
        try:
            return np.lib.format.open_memmap(self.path / name, "c")
        except ValueError as error:
            raise ValueError(
                f"{str(self.path / name)!r} expected to hold the rows of "
                f"{self.samples} samples. Received: {error}. Build the store "
                "again in an empty directory."
            ) from error

    def _read_metadata(self):
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
            if self.metadata.get(name) != value:
                raise ValueError(
                    f"The store at {str(self.path)!r} is of something else: "
                    f"{name} is {self.metadata.get(name)!r} there. Expected: "
                    f"{value!r}. Give another path, or the model, data and "
                    "settings that it was begun with."
                )


def _write_at(path, begin, data):
    """Write bytes at a place of a file, and sync them to disk.

    Not by a memory map, whose pages may hold rows of other machines.
    """
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
