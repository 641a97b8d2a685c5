"""A checksum of a model's weights: whether they were changed since."""

import hashlib

import numpy as np


def weights_checksum(model):
    """Return a text that changes if a weight does, not a seed or a metric."""
    checksum = hashlib.blake2b(digest_size=16)
    for variable in model.weights:
        value = np.ascontiguousarray(variable.numpy())
        checksum.update(f"{value.dtype} {value.shape}".encode())
        checksum.update(value.tobytes())
    return checksum.hexdigest()
