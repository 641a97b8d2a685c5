"""Gradients that are written out: their sums, products, squares and types."""

import tensorflow as tf

from keras_pergrad.factors.shared_tensors import integers, reshape_once

#: Types whose squares overflow, vanish or lose too many digits.
HALF = (tf.float16, tf.bfloat16)


def wide(tensor):
    """Return `tensor`, in float32 if it is of half precision.

    Args:
        tensor: of any shape and floating type; the shape stays.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.wide(tf.ones(2, tf.bfloat16)).dtype.name
    'float32'
    """
    return tf.cast(tensor, tf.float32) if tensor.dtype in HALF else tensor


def expand(weights, tensor):
    """Return weights (n,), shaped to multiply `tensor`, (n, ...)."""
    weights = tf.cast(weights, tensor.dtype)
    return reshape_once(weights, [-1] + [1] * (tensor.shape.rank - 1))


def in_shape(tensor, shape):
    """Return a tensor in another shape, without an op if it has that."""
    static_shape = tensor.shape.rank is not None and tensor.shape.as_list()
    is_known = not any(tf.is_tensor(size) for size in shape)
    if is_known and static_shape == list(shape):
        return tensor
    return tf.reshape(tensor, integers(*shape))


def weighted_total(gradients, weights, shape=None):
    """Return Σ_n weights[n] · gradients[n] of materialised gradients.

    Without weights return Σ_n gradients[n]; in another shape if it is given.
    """
    if weights is None:
        # A product is faster than a reduction over the first axis.
        weights = tf.ones([tf.shape(gradients)[0]], gradients.dtype)
    weights = tf.cast(weights, gradients.dtype)
    static_shape = gradients.shape[1:]
    shape = static_shape if shape is None else shape
    if not static_shape.num_elements():
        total = tf.tensordot(weights, gradients, 1)
        return total if shape is static_shape else tf.reshape(total, shape)
    # As `tf.tensordot` does, in a sixth of its ops.
    rows = gradients
    if static_shape.rank != 1:
        rows = tf.reshape(gradients, integers(-1, static_shape.num_elements()))
    return tf.reshape(reshape_once(weights, [1, -1]) @ rows, integers(*shape))


def inner_products(gradients, direction):
    """Return ⟨gradients[n], direction⟩ of materialised gradients, (n,)."""
    rows = flat_samples(gradients)
    direction = in_type(direction, rows.dtype)
    return tf.linalg.matvec(rows, tf.reshape(direction, [-1]))


def flat_samples(gradients):
    """Return materialised gradients, widened, as a vector a sample."""
    shape = tf.shape(gradients)
    size = gradients.shape[1:].num_elements() or tf.reduce_prod(shape[1:])
    return tf.reshape(wide(gradients), [shape[0], size])


def in_type(direction, dtype):
    """Return a gradient as a tensor of this type; equal rows are added."""
    return tf.cast(tf.convert_to_tensor(direction), dtype)


def squares(gradients):
    """Return Σ_n gradients[n]² of materialised gradients, entry by entry."""
    return tf.reduce_sum(tf.square(wide(gradients)), 0)


def squares_by_sample(tensor):
    """Return the sum of squares over all axes but the first, (n,)."""
    axes = integers(*range(1, tensor.shape.rank))
    return tf.reduce_sum(tf.square(tensor), axes)


def held_bytes(tensor, n):
    """Return the bytes of `tensor` for n samples; None for unknown shapes."""
    size = tensor.shape[1:].num_elements()
    return None if size is None else n * size * tensor.dtype.size


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
