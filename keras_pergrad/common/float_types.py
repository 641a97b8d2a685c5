"""Floating types: one in which several tensors meet, and how to narrow one."""

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


def to_zero(tensor, dtype):
    """Return a tensor in half precision, each number rounded towards zero.

    No norm grows by it. Slices with equal ids are added before. A number
    beyond the range of `dtype` becomes infinite, as in a cast.

    Args:
        tensor: of single or double precision, or `tf.IndexedSlices`.
        dtype: float16 or bfloat16.
    """
    tensor = tf.convert_to_tensor(tensor)
    nearest = tf.cast(tensor, dtype)
    is_longer = tf.abs(tf.cast(nearest, tensor.dtype)) > tf.abs(tensor)
    is_longer &= tf.math.is_finite(nearest)
    # One bit pattern before is the next number nearer to zero, of either sign.
    # A GPU computes with int64; its int32 is the host's.
    bits = tf.cast(tf.bitcast(nearest, tf.int16), tf.int64)
    bits = tf.cast(bits - tf.cast(is_longer, tf.int64), tf.int16)
    return tf.bitcast(bits, dtype)
