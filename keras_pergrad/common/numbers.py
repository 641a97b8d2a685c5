"""Squared norms, and checksums of weights.

It needs no TensorFlow: comparisons of runs do without.
"""

import hashlib

import numpy as np

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
