"""Data frames of pandas as arrays, whose rows are taken by position."""

import numpy as np


def by_position(value):
    """Return a Series or a DataFrame as an array, anything else as it is."""
    # Their own `[...]` takes rows by label, or columns.
    if not hasattr(value, "iloc"):
        return value
    array = np.asarray(value)
    if array.dtype == object and not _is_text(array):
        kinds = getattr(value, "dtypes", None)
        kinds = [str(kind) for kind in np.atleast_1d(np.asarray(kinds, object))]
        raise ValueError(
            "Expected a DataFrame or Series of numbers, or of text, without "
            f"missing values. Received: a {type(value).__name__} of dtypes "
            f"{kinds}. Convert it, such as by .astype('float32'), or give a "
            "dict of its columns, each an input of its own."
        )
    return array


def _is_text(array):
    return all(isinstance(entry, (str, bytes)) for entry in array.flat)
