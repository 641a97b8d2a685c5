"""Amounts of memory, as users write them."""

import re

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
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def bytes_in(name, value):
    """Return an argument such as "8GB", "7.5GiB" or 8_000_000_000 in bytes."""
    size = None
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
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
