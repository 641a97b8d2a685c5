"""Warnings that point at the user's own line."""

import inspect
import warnings
from typing import Any

#: Packages whose lines are none of the user's.
_PASSED = {"keras_pergrad", "keras", "dataclasses"}


def warn_user(text, category=UserWarning):
    """Warn of what the last line outside of the package and Keras has asked."""
    # `skip_file_prefixes` does so from Python 3.12 on.
    frame: Any = inspect.currentframe()
    level = 1
    while frame.f_back is not None and _package(frame) in _PASSED:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def _package(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]
