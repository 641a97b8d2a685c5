"""The data of a `fit`, with the number of each sample beside its inputs."""

import keras
import numpy as np

from keras_pergrad.common.numbered import is_numbered, with_numbers


def number_arrays(arguments):
    """Put row numbers beside arrays; return their rows, None: no arrays."""
    x = arguments.get("x")
    if is_numbered(x) or not _is_of_arrays(x):
        return None
    rows = int(keras.tree.flatten(x)[0].shape[0])
    arguments["x"] = with_numbers(x, np.arange(rows))
    return rows


def ids_of(ids, rows):
    """Return the ids of the samples as an array, one for each number."""
    if ids is None and rows is None:
        raise ValueError(
            "`ids` expected the ids of all samples, or how many there are, "
            "since a data set does not tell. Received: ids=None. Give "
            "SampleValues(..., ids=len(data)), and a data set whose samples "
            "have numbers: SampleValues.with_numbers(x, numbers) in place of x."
        )
    if ids is None:
        return np.arange(rows)
    if np.ndim(ids) == 0:
        ids = range(int(ids))
    ids = np.asarray(ids)
    if ids.ndim != 1 or not len(ids) or rows not in (None, len(ids)):
        expected = "at least one" if rows is None else f"{rows}, one a row of x"
        raise ValueError(
            f"`ids` expected a list of {expected}. Received: ids of shape "
            f"{ids.shape}"
        )
    return ids


def _is_of_arrays(x):
    parts = keras.tree.flatten(x)
    return bool(parts) and all(_has_rows(part) for part in parts)


def _has_rows(part):
    shape = getattr(part, "shape", None)
    return shape is not None and len(shape) > 0 and shape[0] is not None
