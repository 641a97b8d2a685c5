"""Squared norms in double precision, of arrays of any type."""

import numpy as np

#: So many numbers at a time, which stay in a cache: new memory costs more.
_CHUNK = 2**14


def squared_norm(array, other=None):
    """‖array − other‖², in double precision."""
    flat = np.asarray(array).reshape(-1)
    others = None if other is None else np.asarray(other).reshape(-1)
    total = 0.0
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK].astype(np.float64)
        if others is not None:
            chunk -= others[start : start + _CHUNK].astype(np.float64)
        # Not by BLAS, whose threads go on spinning and slow TensorFlow down.
        total += np.square(chunk, out=chunk).sum()
    return float(total)
