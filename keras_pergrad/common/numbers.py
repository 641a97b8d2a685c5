"""Numbers: checks of arguments, amounts of memory, squared norms, checksums.

It needs no TensorFlow: comparisons of runs do without.
"""

import hashlib
import math
import numbers
import operator
import re

import numpy as np


def is_number(value):
    """Whether it is a real number, of NumPy, too, and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def seed_or_none(value):
    """Return a seed as an `int`, or None; refuse what Keras cannot take."""
    try:
        seed = None if value is None else operator.index(value)
    except TypeError:
        raise ValueError(
            f"`seed` must be an integer or None. Received: seed={value!r}"
        ) from None
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise ValueError(
            "`seed` must be at least -2**63 and below 2**63. Received: "
            f"seed={value!r}. Take a smaller one, such as seed % 2**63."
        )
    return seed


def positive_integer(name, value):
    """Return an argument as an `int`; NumPy integers are accepted too."""
    try:
        is_bool = isinstance(value, (bool, np.bool_))
        number = 0 if is_bool else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )
    return number


def positive_number(name, value, alternative="", *, infinite=False):
    """Return an argument above 0 as a `float`; finite, unless `infinite`.

    `alternative`: what else is accepted, such as " or None".
    """
    if is_number(value) and value > 0 and (infinite or value < math.inf):
        return float(value)
    raise ValueError(
        f"`{name}` must be a positive number{alternative}. "
        f"Received: {name}={value!r}"
    )


def number_at_least_zero(name, value, alternative=""):
    """Return a finite argument of at least 0 as a `float`."""
    if is_number(value) and 0 <= value < math.inf:
        return float(value)
    raise ValueError(
        f"`{name}` must be a finite number of at least 0{alternative}. "
        f"Received: {name}={value!r}"
    )


_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def parse_bytes(name, value):
    """Return an argument such as "8GB", "7.5GiB" or 8_000_000_000 in bytes."""
    size = None
    if isinstance(value, str):
        match = _SIZE_PATTERN.fullmatch(value)
        unit = match and _UNITS.get(match[2].lower())
        if match and unit:
            size = int(float(match[1]) * unit)
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if size is None or size < 1:
        raise ValueError(
            f"`{name}` expected a positive number of bytes, or a text such as "
            f"'8GB' (8 * 10**9 bytes), '8GiB' (8 * 2**30) or '500MB'. "
            f"Received: {name}={value!r}"
        )
    return size


#: Numbers that are widened at a time. They fit into the processor's cache,
#: which costs less than new memory.
_CHUNK = 2**14


def squared_norm(array, other=None):
    """‖array − other‖², in double precision."""
    flat = np.asarray(array).reshape(-1)
    other_flat = None if other is None else np.asarray(other).reshape(-1)
    total = 0.0
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK].astype(np.float64)
        if other_flat is not None:
            chunk -= other_flat[start : start + _CHUNK].astype(np.float64)
        # Not by BLAS, whose threads go on spinning and slow TensorFlow down.
        total += np.square(chunk, out=chunk).sum()
    return float(total)


def weights_checksum(model):
    """Return a text that changes if a weight does, not a seed or a metric."""
    checksum = hashlib.blake2b(digest_size=16)
    for variable in model.weights:
        value = np.ascontiguousarray(variable.numpy())
        checksum.update(f"{value.dtype} {value.shape}".encode())
        checksum.update(value.tobytes())
    return checksum.hexdigest()
