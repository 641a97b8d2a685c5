"""The definiteness of matrices, beyond rounding."""

from typing import Any

import numpy as np

from keras_pergrad.factors.written_out import norm_type

#: Eigenvalues below so many rounding units of the largest one are rounding.
_ROUNDING_UNITS = 8


def rounding_share(variables):
    """Return below which share of the largest an eigenvalue is rounding."""
    dtype: Any = norm_type(list(variables)).as_numpy_dtype
    return _ROUNDING_UNITS * float(np.finfo(dtype).eps)


def is_definite(matrix, share):
    """Whether a symmetric matrix is positive definite beyond rounding."""
    # The largest entry of the diagonal is no more than the largest eigenvalue.
    margin = share * np.diagonal(matrix).max(initial=0.0)
    try:
        np.linalg.cholesky(matrix - margin * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        return False
    return True
