"""What a run record holds, and how it stands on disk.

A run is a directory with three files. `run.json` tells what was run. Each
measurement is a line of `records.jsonl`, the scalars, and a row of
`vectors.f32`, the numbers of each variable; line i belongs to row i. A row
is written before its line, and the line holds the row's checksum, so that a
line that is complete stands for a record that is complete.
"""

import dataclasses
import json
import math
import zlib

import numpy as np

FORMAT = 1
INFO_FILE, LINES_FILE, ROWS_FILE = "run.json", "records.jsonl", "vectors.f32"
VARIABLE_SKETCH_SIZE = 16

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


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shape of one row: little-endian float32, without gaps.

    Args:
        variables: how many trainable variables the model has, V.
        variable_sketch_size: numbers in the sketch of one variable, R.
        sketch_size: numbers in the sketch of the whole gradient, S.
    """

    variables: int
    variable_sketch_size: int
    sketch_size: int

    @property
    def dtype(self):
        """The row as a structured NumPy type."""
        count, each = self.variables, self.variable_sketch_size
        return np.dtype(
            [
                ("norms", "<f4", (count,)),
                ("variances", "<f4", (count,)),
                ("variable_sketches", "<f4", (count, each)),
                ("sketch", "<f4", (self.sketch_size,)),
            ]
        )

    def pack(self, norms, variances, variable_sketches, sketch):
        """One row as bytes; `variances` may be None.

        Raises:
            ValueError: an array has not the shape that the run has.
        """
        row = np.zeros((), self.dtype)
        given = {
            "norms": norms,
            "variances": np.full(self.variables, np.nan)
            if variances is None
            else variances,
            "variable_sketches": variable_sketches,
            "sketch": sketch,
        }
        for name, value in given.items():
            expected = row[name].shape
            if np.shape(value) != expected:
                raise ValueError(
                    f"`{name}` expected the shape {expected}, that of this "
                    f"run. Received: shape {np.shape(value)}"
                )
            # A float64 beyond float32 becomes infinite, as it should.
            with np.errstate(over="ignore"):
                row[name] = value
        return row.tobytes()


def encode(scalars, row):
    """A record's line, with the end of line."""
    unknown = set(scalars) - {*COUNTERS, *SCALARS}
    missing = set(COUNTERS) - set(scalars)
    if unknown or missing:
        raise ValueError(
            f"A record's scalars are {', '.join(COUNTERS + SCALARS)}, of "
            f"which {' and '.join(COUNTERS)} are required. Received: "
            f"unknown {sorted(unknown)}, missing {sorted(missing)}"
        )
    found: dict[str, object] = {name: int(scalars[name]) for name in COUNTERS}
    for name in SCALARS:
        found[name] = _plain(scalars.get(name))
    found["crc"] = zlib.crc32(row)
    return json.dumps(found, allow_nan=False).encode() + b"\n"


def _plain(value):
    """JSON has no NaN and no infinity: they are written as their names."""
    if value is None or isinstance(value, int):
        return value
    value = float(value)
    return value if math.isfinite(value) else str(value)
