"""Rows of numbers on disk, built in chunks by any number of processes.

A directory with `gradients.npy` (n, size) in half precision, each row over its
largest entry, which is in `scales.npy`; `chunks.bin`, a byte for each chunk, 1
once its rows are on disk; and `about.json`. Each process writes its own
chunks, at their places, so that no order and no lock matters.
"""

import json
import os
import pathlib

import numpy as np

from keras_pergrad.common.machine import write_atomically

_READ_BYTES = 2**23
_FORMAT = 1


class GradientStore:
    """A store at a path, made if it is not there.

    Args:
        path: of the directory.
        metadata: a dict with "samples", "size", "rows" (of a chunk) and what
            else must agree; None: the store must be there.

    Raises:
        ValueError: a store of something else is there, or none.
    """

    def __init__(self, path, metadata=None):
        self.path = pathlib.Path(path)
        if metadata is not None:
            self._create_files({"format": _FORMAT, **metadata})
        self.metadata = self._read_metadata()
        self.require(metadata or {})
        self.samples = self.metadata["samples"]
        self.size = self.metadata["size"]
        self.chunks = -(-self.samples // self.metadata["rows"])

    def missing(self, shard=(0, 1)):
        """List the chunks of a part of the store that are to be built."""
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
        self._write_rows(
            "gradients.npy", first_row, normalized_rows.astype("float16")
        )
        self._write_rows("scales.npy", first_row, scales)
        # Only after the rows are synced to disk: a killed process must not
        # leave a chunk that is marked but not written.
        with open(self.path / "chunks.bin", "r+b") as file:
            file.seek(chunk)
            file.write(b"\1")

    def stored_blocks(self, index=0, stride=1):
        """Yield (first row, rows, scales), in half precision, as on disk.

        One block of every `stride`, from block `index` on. The rows stand in
        one buffer, which the next block overwrites.
        """
        scales = np.load(self.path / "scales.npy", mmap_mode="r")
        block_rows = self.rows_per_block
        buffer = _aligned_buffer(2 * block_rows * self.size)
        with open(self.path / "gradients.npy", "rb", buffering=0) as file:
            _skip_header(file)
            data_start = file.tell()
            for first_row in range(
                index * block_rows, self.samples, stride * block_rows
            ):
                n = min(block_rows, self.samples - first_row)
                file.seek(data_start + 2 * first_row * self.size)
                block = buffer[: 2 * n * self.size]
                _read_into(file, block.data)
                _prefetch(
                    file,
                    data_start
                    + 2 * (first_row + stride * block_rows) * self.size,
                )
                rows = block.view(np.float16).reshape(n, self.size)
                yield first_row, rows, scales[first_row : first_row + n]

    @property
    def rows_per_block(self):
        """How many rows are read at once."""
        return max(1, _READ_BYTES // (2 * self.size))

    def load_or_make(self, name, make):
        """Return an array that is made once and kept beside the rows."""
        path = self.path / name
        if not path.exists():
            write_atomically(path, lambda file: np.save(file, make()))
        return np.load(path)

    def _create_files(self, metadata):
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "about.json").exists():
            return
        n, size = metadata["samples"], metadata["size"]
        self._reserve("gradients.npy", np.float16, (n, size))
        self._reserve("scales.npy", np.float32, (n,))
        with open(self.path / "chunks.bin", "ab") as file:
            file.truncate(-(-n // metadata["rows"]))
        text = json.dumps(metadata, indent=1, sort_keys=True).encode()
        write_atomically(
            self.path / "about.json", lambda file: file.write(text)
        )

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
            byte_count = int(np.prod(shape)) * np.dtype(dtype).itemsize
            file.truncate(file.tell() + byte_count)

    def _write_rows(self, name, first_row, rows):
        with open(self.path / name, "r+b") as file:
            _skip_header(file)
            file.seek(first_row * rows[:1].nbytes, os.SEEK_CUR)
            file.write(np.ascontiguousarray(rows).data)
            file.flush()
            os.fsync(file.fileno())

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


def _aligned_buffer(size):
    """Return bytes at a multiple of 64, which TensorFlow does not copy."""
    memory = np.empty(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size]


def _read_into(file, buffer):
    while buffer:
        read = file.readinto(buffer)
        if not read:
            raise ValueError(
                f"{file.name!r} expected {len(buffer)} more bytes. Received: "
                "its end. Build the store again in an empty directory."
            )
        buffer = buffer[read:]


def _prefetch(file, offset):
    """Let the system read ahead from an offset, if it takes such hints."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(
            file.fileno(), offset, _READ_BYTES, os.POSIX_FADV_WILLNEED
        )


def _skip_header(file):
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
