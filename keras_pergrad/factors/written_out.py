"""Gradients that are written out: their sums, products, squares and types.

Small tensors are shared in a graph: each op costs about a tenth of a
millisecond to trace, and as much to optimise and start, and a step has a norm
and a sum for each variable.
"""

import weakref

import tensorflow as tf

#: Types whose squares overflow, vanish or lose too many digits.
HALF = (tf.float16, tf.bfloat16)

# The names of tensors, since a tensor keeps its graph alive.
_TENSOR_NAMES = weakref.WeakKeyDictionary()


def integers(*values):
    """Return integers, an axis or a shape, as one constant of the graph."""
    if tf.executing_eagerly() or set(map(type, values)) != {int}:
        return list(values)
    return _shared_tensor(values, lambda: tf.constant(values, tf.int32))


def reshape_once(tensor, shape):
    """Return a tensor in a shape of integers, made once in its graph."""
    # A tensor with a value has no graph.
    graph = getattr(tensor, "graph", None)
    if graph is not tf.compat.v1.get_default_graph():
        return tf.reshape(tensor, shape)
    key = tensor.name, *shape
    return _shared_tensor(key, lambda: tf.reshape(tensor, integers(*shape)))


def zero(dtype):
    """Return a scalar zero, as one constant of the graph."""
    if tf.executing_eagerly():
        return tf.zeros([], dtype)
    return _shared_tensor(("zero", dtype), lambda: tf.constant(0, dtype))


def _shared_tensor(key, make):
    """Return `make()`, a tensor, which is made once in a graph."""
    graph = tf.compat.v1.get_default_graph()
    names = _TENSOR_NAMES.setdefault(graph, {})
    if key not in names:
        # The control dependencies of the first use are not those of others.
        with tf.control_dependencies(None):
            names[key] = make().name
    return graph.get_tensor_by_name(names[key])


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
    is_known = not any(map(tf.is_tensor, shape))
    if is_known and static_shape == list(shape):
        return tensor
    return tf.reshape(tensor, integers(*shape))


def sizes_of(tensor, axes=None) -> list:
    """Return the sizes of axes: numbers where known, else scalar tensors."""
    static_shape = tensor.shape.as_list()
    axes = range(len(static_shape)) if axes is None else axes
    is_dynamic = any(static_shape[k] is None for k in axes)
    # One op gives them all.
    runtime_sizes = tf.unstack(tf.shape(tensor)) if is_dynamic else static_shape
    return [
        runtime_sizes[k] if static_shape[k] is None else static_shape[k]
        for k in axes
    ]


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
