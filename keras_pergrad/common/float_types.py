"""The floating type in which figures of several tensors meet."""

import tensorflow as tf


def norm_type(tensors):
    """Return float64 where one of the tensors is, else float32.

    Args:
        tensors: tensors or the values of variables; None among them is left
            out. Squares of half precision would leave its range.
    """
    dtypes = {tf.as_dtype(t.dtype) for t in tensors if t is not None}
    return tf.float64 if tf.float64 in dtypes else tf.float32


def as_norms(tensors):
    """Return the tensors but for None, all of their `norm_type`."""
    dtype = norm_type(tensors)
    return [tf.cast(t, dtype) for t in tensors if t is not None]
