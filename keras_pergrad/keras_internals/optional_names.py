"""Private attributes that only some objects have, and what goes with them."""

import warnings
from typing import Any

_MISSING = object()
_SEEN = set()


def optional(thing, name, example, lost, otherwise=None) -> Any:
    """Return an attribute; warn where not even `example()` has it."""
    value = getattr(thing, name, _MISSING)
    if value is not _MISSING:
        return value
    if name not in _SEEN:
        one = example()
        if hasattr(one, name):
            _SEEN.add(name)
        else:
            library = type(one).__module__.partition(".")[0]
            warnings.warn(
                f"This version of {library} has no "
                f"{type(one).__name__}.{name}, so that {lost}.",
                stacklevel=2,
            )
    return otherwise
